(() => {
  const {rows, pictures, low, high, means} = data, flat = low === high;
  const [score, from, card] = ["score", "from", "card"].map(id => document.getElementById(id)), odds = document.querySelectorAll("#odds b");
  const fixed = value => value.toFixed(data.digits);

  // A part of a row is a token: text, voken, score, word if it is another, all vokens if there are several; or the gap to the next
  // token, where that is not a space. Find compares each different text once per key, and then looks up the text, the word and the
  // picture of each token.
  const tokens = rows.map(row => row.parts.filter(part => typeof part !== "string"));
  const starts = [0];
  for (const row of tokens) starts.push(starts.at(-1) + row.length);
  const scores = Float64Array.from(tokens.flat(), token => token[2] ?? NaN);
  const pictured = tokens.flat().filter(token => token[1] !== null).length;
  const hit = new Uint8Array(scores.length), hits = new Uint32Array(rows.length);
  let terms = null, keys = null, sought = false;
  function prepare() {
    if (terms) return;
    const known = new Map();
    const key = text => { if (!known.has(text)) known.set(text, known.size); return known.get(text); };
    const named = Object.fromEntries(Object.entries(pictures).map(([row, {id, name}]) => [row, key(`${id} ${name}`)]));
    keys = Uint32Array.from(tokens.flat().flatMap(([text, voken, , word]) => [key(text), key(word ?? text), named[voken] ?? key(text)]));
    terms = [...known.keys()].map(text => text.toLowerCase());
  }
  function match(wanted) {
    sought = wanted !== "";
    if (!sought) return [...rows.keys()];
    prepare();
    const has = Uint8Array.from(terms, text => text.includes(wanted));
    for (let row = 0, i = 0; row < rows.length; row++) {
      hits[row] = 0;
      for (; i < starts[row + 1]; i++) hits[row] += hit[i] = has[keys[3 * i]] | has[keys[3 * i + 1]] | has[keys[3 * i + 2]];
    }
    return [...rows.keys()].filter(row => hits[row]);
  }
  const least = () => score.value === score.min ? -Infinity : Number(score.value);
  let counted = {};
  function tally(dim) {
    if (counted.dim === dim) return counted;
    counted = {dim, below: 0, likely: 0, right: 0};
    for (const value of scores) { if (value < dim) counted.below++; else if (value >= dim) { counted.likely++; counted.right += value; } }
    return counted;
  }
  function summary(wanted) {
    const {below, likely, right} = tally(least());
    [likely.toLocaleString("en"), fixed(Number(score.value)), Math.round(right).toLocaleString("en")].forEach((text, i) => { if (odds[i]) odds[i].textContent = text; });
    from.value = flat ? "" : fixed(Number(score.value));
    return [wanted === "" ? "" : `${count(hits.reduce((n, more) => n + more, 0), "token")} in ${count(hits.filter(n => n).length, "sentence")}`,
            below && !odds.length ? `${below.toLocaleString("en")} of ${count(pictured, "picture")} dimmed` : ""].filter(Boolean).join(", ");
  }

  function tile(token) {
    const [text, voken, value] = token, made = node("span", sought ? "t hit" : "t");
    if (voken !== null) {
      const picture = pictures[voken], tenths = value === null ? "x" : flat ? 10 : Math.round(10 * (value - low) / (high - low));
      made.dataset.v = voken; made.dataset.s = value ?? "";
      made.setAttribute("role", "button");
      made.setAttribute("aria-label", `${text}: ${picture.id}${value === null ? "" : `, ${means} ${value}`}`);
      made.tabIndex = -1;
      made.classList.toggle("low", value !== null && value < least());
      made.append(node("i", look(picture)), node("b", "q" + tenths));
    }
    made.append(node("span", "", text));
    made.token = token;
    return made;
  }
  function draw(row, article) {
    const line = article.appendChild(node("p", rows[row].parts.length ? sought ? "s sought" : "s" : "s empty"));
    if (rows[row].parts.length === 0) { line.textContent = "an empty line"; return; }
    line.dir = "auto";
    let i = starts[row], text = "", gap = "", before = null;
    for (const part of rows[row].parts) {
      if (typeof part === "string") { gap = part; continue; }
      text += gap; gap = " ";
      if (sought && !hit[i++]) { text += part[0]; before = null; continue; }
      const made = tile(part);
      if (text) line.append(text);
      if (before && !text && part[1] !== null) {
        before.classList.add("joins"); made.classList.add("joined");
        // Two that touch, such as a word and its comma, stay on one line.
        if (before.parentNode === line) { const pair = node("span", "pair"); before.replaceWith(pair); pair.append(before, made); }
        else line.append(made);
      } else line.append(made);
      before = part[1] === null ? null : made;
      text = "";
    }
    if (typeof rows[row].parts.at(-1) === "string") text += gap;
    if (text) line.append(text);
    const first = line.querySelector("[data-v]");
    if (first) first.tabIndex = 0;
  }

  // The card: shown on hover and focus, kept open by click or Enter.
  let shown = null, kept = false;
  function close() { if (shown) shown.classList.remove("on"); shown = null; kept = false; card.hidden = true; card.classList.remove("kept"); }
  function open(t, keep) {
    if (shown) shown.classList.remove("on");
    shown = t; kept = keep; t.classList.add("on");
    const [text, row, value, word, others] = t.token, picture = pictures[row];
    const head = node("h2", "", text.trim()), big = node("div", look(picture) + " big");
    head.append(node("b", "", value === null ? "" : fixed(value)));
    card.replaceChildren(big, head, node("p", "", picture.name), node("p", "id", picture.id), node("p", "", `voken ${row}${value === null ? "" : `, ${means} ${value}`}${picture.gone ? ". No picture: " + picture.gone : ""}`));
    if (word) card.append(node("p", "", `in “${word}”`));
    if (others) {
      const list = node("ol");
      for (const [other, score] of others) {
        const item = node("li", "", "");
        item.title = pictures[other].id;
        item.append(node("div", look(pictures[other])), score === null ? "" : fixed(score));
        list.append(item);
      }
      card.append(list);
    }
    const acts = node("div", "acts"), same = node("button", "", "All with this picture"), shut = node("button", "", "Close");
    same.type = shut.type = "button";
    same.onclick = () => page.search(picture.id);
    shut.onclick = () => { const back = shown; close(); back.focus({preventScroll: true}); card.hidden = true; };
    acts.append(same, shut);
    card.append(acts);
    card.classList.toggle("kept", keep);
    card.setAttribute("aria-label", t.getAttribute("aria-label"));
    card.hidden = false;
    place();
  }
  function place() { placeBeside(card, shown); }
  const under = event => event.target.closest ? event.target.closest("main .t[data-v]") : null;
  document.addEventListener("pointerover", e => { if (kept || e.pointerType === "touch") return; const t = under(e); if (t) open(t, false); else if (shown && document.activeElement !== shown) close(); });
  document.addEventListener("focusin", e => { const t = under(e); if (t && t !== shown) open(t, false); else if (!t && !card.contains(e.target)) close(); });
  document.addEventListener("click", e => {
    const t = under(e), hub = e.target.closest("[data-find]");
    if (t) { if (kept && shown === t) close(); else open(t, true); }
    else if (!card.contains(e.target)) close();
    if (hub) page.search(hub.dataset.find);
  });
  document.addEventListener("scroll", () => { if (shown && shown.isConnected && (kept || document.activeElement === shown)) place(); else close(); }, {passive: true});
  window.addEventListener("resize", () => { if (shown && shown.isConnected) place(); else close(); });
  document.addEventListener("keydown", e => {
    if (e.key === "Escape") { const back = shown; close(); if (back && card.contains(document.activeElement)) back.focus(); return; }
    const t = under(e);
    if (!t) return;
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); if (kept && shown === t) close(); else { open(t, true); } return; }
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    if (!step) return;
    e.preventDefault();
    const seen = [...page.here.querySelectorAll(".t[data-v]")], next = seen[seen.indexOf(t) + step];
    if (!next) return;
    for (const stop of next.closest("article").querySelectorAll('.t[tabindex="0"]')) stop.tabIndex = -1;
    next.tabIndex = 0;  // one tab stop a sentence
    next.focus({preventScroll: true}); next.scrollIntoView({block: "nearest"});
    open(next, kept);
  });

  score.min = low; score.max = high; score.step = "any"; score.value = data.least;
  score.closest("label").hidden = flat;
  score.addEventListener("input", () => {
    for (const t of page.here.querySelectorAll(".t[data-v]")) t.classList.toggle("low", t.token[2] !== null && t.token[2] < least());
    said.textContent = summary(find.value.trim().toLowerCase());
  });
  const page = gallery({match, summary, draw, close, size: row => 4 + (sought ? hits[row] : tokens[row].length)});
})();
