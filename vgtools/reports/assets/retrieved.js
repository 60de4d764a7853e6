(() => {
  const {rows, pictures, names} = data, card = document.getElementById("card");
  // A row has one set of images per strategy; an image is its row of the bank, its score, and 1 if it is the text's own.
  const texts = rows.map(row => row.text.toLowerCase());
  const ids = Object.entries(pictures).map(([key, {id, name}]) => [...key.slice(1).split("-").map(Number), `${id} ${name}`.toLowerCase()]);
  let sought = "", found = [], hits = 0, shownRows = 0;  // found: the rows of each bank whose picture has the text
  function match(wanted) {
    sought = wanted; hits = 0;
    found = names.map(() => new Set());
    if (wanted !== "") for (const [set, image, id] of ids) if (id.includes(wanted)) found[set].add(image);
    const shown = [];
    rows.forEach(({sets}, row) => {
      let own = 0;
      sets.forEach((images, set) => { if (found[set].size) for (const [image] of images) own += found[set].has(image); });
      if (own || texts[row].includes(wanted)) shown.push(row);
      hits += own;
    });
    shownRows = shown.length;
    return shown;
  }
  const summary = wanted => wanted === "" ? "" : count(shownRows, "text") + (hits ? ", " + count(hits, "picture") : "");

  function draw(row, article) {
    const {text, sets} = rows[row], line = article.appendChild(node("p", text.trim() ? "s" : "s empty", text.trim() ? text : "an empty line"));
    line.dir = "auto";
    const dim = sought !== "" && !texts[row].includes(sought), box = article.appendChild(node("div", "sets"));
    sets.forEach((images, set) => {
      const section = box.appendChild(node("section", "set"));
      if (names.length > 1) section.append(node("h2", "", names[set]));
      if (images.length === 0) { section.append(node("p", "none", "no images")); return; }
      section.append(node("ol"));
      images.forEach(([image, score, own], rank) => {
        const key = `p${set}-${image}`, item = section.lastChild.appendChild(node("li", own ? "own" : "")), button = node("button", look(pictures[key]));
        button.type = "button"; button.dataset.p = key;
        button.classList.toggle("off", dim && !found[set].has(image));
        button.title = [`${rank + 1}. ${pictures[key].id}`, score, own ? "the text's own image" : ""].filter(Boolean).join(", ");
        button.setAttribute("aria-label", button.title);
        item.append(button, node("span", "", score));
      });
    });
  }

  let shown = null;
  function close() { if (shown) shown.classList.remove("on"); shown = null; card.hidden = true; }
  function shut() { const back = shown; close(); back.focus({preventScroll: true}); }
  function open(button) {
    close();
    shown = button; button.classList.add("on");
    const picture = pictures[button.dataset.p];
    const acts = node("div", "acts"), same = node("button", "", "All with this picture"), end = node("button", "", "Close");
    same.type = end.type = "button";
    same.onclick = () => page.search(picture.id);
    end.onclick = shut;
    acts.append(same, end);
    card.replaceChildren(node("div", look(picture) + " big"), node("p", "id", button.title), ...(picture.name ? [node("p", "", picture.name)] : []),
                         ...(picture.gone ? [node("p", "", "No picture: " + picture.gone)] : []), acts);
    card.setAttribute("aria-label", button.title);
    card.hidden = false;
    place();
  }
  function place() { if (shown && shown.isConnected) placeBeside(card, shown); else close(); }
  document.addEventListener("click", e => {
    const button = e.target.closest("button.pic");
    if (button) { if (shown === button) close(); else open(button); }
    else if (!card.contains(e.target)) close();
  });
  document.addEventListener("scroll", place, {passive: true});
  window.addEventListener("resize", place);
  document.addEventListener("keydown", e => {
    if (e.key === "Escape" && shown) { shut(); return; }
    const all = [...page.here.querySelectorAll("button.pic")], at = all.indexOf(document.activeElement);
    const next = at < 0 ? null : all[at + ({ArrowRight: 1, ArrowLeft: -1}[e.key] ?? NaN)];
    if (!next) return;
    e.preventDefault();
    next.focus({preventScroll: true}); next.scrollIntoView({block: "nearest"});
    if (shown) open(next);
  });
  const page = gallery({match, summary, draw, close, size: row => 4 + rows[row].sets.reduce((n, images) => n + images.length, 0)});
})();
