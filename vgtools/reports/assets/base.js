"use strict";
const node = (name, look, text) => {
  const made = document.createElement(name);
  if (look) made.className = look;
  if (text !== undefined) made.textContent = text;
  return made;
};
