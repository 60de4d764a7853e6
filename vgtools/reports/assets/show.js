(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [find, score, from, said, card, nothing] = ["find", "score", "from", "said", "card", "nothing"].map(id => document.getElementById(id));
  const fixed = value => Number(value).toFixed(data.digits);
  const look = row => "pic " + data.pictures[row].look;

  // The tokens that can be found and dimmed are read off the page once.
  const articles = [...document.querySelectorAll("article")].map(el => ({el, tokens: [...el.querySelectorAll(".t")].map(t => {
    const row = t.dataset.v, id = row === undefined ? "" : data.pictures[row].id + " " + data.pictures[row].name;
    if (t.title) { t.setAttribute("aria-label", t.title); t.removeAttribute("title"); }  // The card shows more.
    return {el: t, row, text: t.textContent.toLowerCase(), word: t.dataset.w.toLowerCase(), id: id.toLowerCase(), score: parseFloat(t.dataset.s)};
  })}));
  const pictured = articles.flatMap(a => a.tokens.filter(t => t.row !== undefined));
  for (const a of articles) { const first = a.tokens.find(t => t.row !== undefined); if (first) first.el.tabIndex = 0; }

  function apply() {
    const wanted = find.value.trim().toLowerCase(), least = Number(score.value), all = score.value === score.min;
    let hits = 0, sentences = 0, dimmed = 0;
    for (const a of articles) {
      let any = false;
      for (const t of a.tokens) {
        const hit = wanted !== "" && (t.text.includes(wanted) || t.word.includes(wanted) || t.id.includes(wanted));
        const low = !all && t.score < least;
        t.el.classList.toggle("hit", hit);
        t.el.classList.toggle("off", wanted !== "" && !hit);
        t.el.classList.toggle("low", low);
        if (hit) { any = true; hits++; }
        if (low) dimmed++;
      }
      a.el.hidden = wanted !== "" && !any;
      if (any) sentences++;
    }
    nothing.hidden = wanted === "" || hits > 0;
    from.value = data.low === data.high ? "" : fixed(score.value);
    const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
    said.textContent = [wanted === "" ? "" : `${count(hits, "token")} in ${count(sentences, "sentence")}`,
                        dimmed ? `${dimmed.toLocaleString("en")} of ${count(pictured.length, "picture")} dimmed` : ""].filter(Boolean).join(", ");
  }

  // The card: shown on hover and focus, kept open by click or Enter.
  let shown = null, kept = false;
  function close() { if (shown) shown.classList.remove("on"); shown = null; kept = false; card.hidden = true; card.classList.remove("kept"); }
  function search(text) { find.value = text; close(); apply(); window.scrollTo({top: document.querySelector(".bar").offsetTop}); }
  function open(t, keep) {
    if (shown) shown.classList.remove("on");
    shown = t; kept = keep; t.classList.add("on");
    const row = t.dataset.v, picture = data.pictures[row];
    const head = node("h2", "", t.textContent.trim()), big = node("div", look(row) + " big");
    head.append(node("b", "", t.dataset.s === "" ? "" : fixed(t.dataset.s)));
    card.replaceChildren(big, head, node("p", "", picture.name), node("p", "id", picture.id), node("p", "", `voken ${row}${t.dataset.s === "" ? "" : ", relevance " + t.dataset.s}${picture.gone ? ". No picture: " + picture.gone : ""}`));
    if (t.dataset.w !== t.textContent.trim()) card.append(node("p", "", `in “${t.dataset.w}”`));
    if (t.dataset.k) {
      const list = node("ol");
      for (const pair of t.dataset.k.split(" ")) {
        const [other, value] = pair.split(":"), item = node("li", "", "");
        item.title = data.pictures[other].id;
        item.append(node("div", look(other)), value === "" ? "" : fixed(value));
        list.append(item);
      }
      card.append(list);
    }
    const acts = node("div", "acts"), same = node("button", "", "All with this picture"), shut = node("button", "", "Close");
    same.type = shut.type = "button";
    same.onclick = () => search(picture.id);
    shut.onclick = () => { const back = shown; close(); back.focus({preventScroll: true}); card.hidden = true; };
    acts.append(same, shut);
    card.append(acts);
    card.classList.toggle("kept", keep);
    card.setAttribute("aria-label", t.getAttribute("aria-label"));
    card.hidden = false;
    place();
  }
  function place() { placeBeside(card, shown); }
  const tile = event => event.target.closest ? event.target.closest(".t[data-v]:not(.off)") : null;
  document.addEventListener("pointerover", e => { if (kept || e.pointerType === "touch") return; const t = tile(e); if (t) open(t, false); else if (shown && document.activeElement !== shown) close(); });
  document.addEventListener("focusin", e => { const t = tile(e); if (t && t !== shown) open(t, false); else if (!t && !card.contains(e.target)) close(); });
  document.addEventListener("click", e => {
    const t = tile(e);
    if (t) { if (kept && shown === t) close(); else open(t, true); }
    else if (!card.contains(e.target)) close();
    const hub = e.target.closest("[data-find]");
    if (hub) search(hub.dataset.find);
  });
  document.addEventListener("scroll", () => { if (shown && (kept || document.activeElement === shown)) place(); else close(); }, {passive: true});
  window.addEventListener("resize", () => { if (shown) place(); });
  document.addEventListener("keydown", e => {
    if (e.key === "Escape") { const back = shown; close(); if (back && card.contains(document.activeElement)) back.focus(); return; }
    if (e.key === "/" && document.activeElement !== find) { e.preventDefault(); find.focus(); return; }
    const t = tile(e);
    if (!t) return;
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); if (kept && shown === t) close(); else { open(t, true); } return; }
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    if (!step) return;
    e.preventDefault();
    const seen = pictured.filter(p => !p.el.classList.contains("off")), next = seen[seen.findIndex(p => p.el === t) + step];
    if (!next) return;
    for (const stop of next.el.closest("article").querySelectorAll('.t[tabindex="0"]')) stop.tabIndex = -1;
    next.el.tabIndex = 0;  // one tab stop a sentence
    next.el.focus({preventScroll: true}); next.el.scrollIntoView({block: "nearest"});
    open(next.el, kept);
  });

  const flat = data.low === data.high;
  score.min = data.low; score.max = data.high; score.step = "any"; score.value = data.low;
  score.closest("label").hidden = flat;
  find.addEventListener("input", () => { close(); apply(); });
  score.addEventListener("input", apply);
  document.querySelector(".bar").addEventListener("submit", e => e.preventDefault());
  document.querySelector(".bar").hidden = false;
  apply();
})();
