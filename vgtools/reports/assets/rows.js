// Below its subject, above where there is more room, and inside the window.
function placeBeside(card, shown) {
  const box = shown.getBoundingClientRect(), w = card.offsetWidth, h = card.offsetHeight;
  const left = Math.min(Math.max(8, box.left + box.width / 2 - w / 2), document.documentElement.clientWidth - w - 8);
  const below = box.bottom + 8, above = box.top - h - 8;
  card.style.left = left + "px";
  card.style.top = (below + h < innerHeight - 8 || above < 8 ? Math.max(8, Math.min(below, innerHeight - h - 8)) : above) + "px";
}
