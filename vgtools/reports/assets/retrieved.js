(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [find, said, card, nothing] = ["find", "said", "card", "nothing"].map(id => document.getElementById(id));
  const articles = [...document.querySelectorAll("article")].map(el => ({
    el, text: el.querySelector(".s").textContent.toLowerCase(),
    pictures: [...el.querySelectorAll(".pic")].map(b => {
      const picture = data.pictures[b.dataset.p];
      return {el: b, id: (picture.id + " " + picture.name).toLowerCase()};
    })}));
  const all = articles.flatMap(a => a.pictures.map(p => p.el));

  function apply() {
    const sought = find.value.trim().toLowerCase();
    let texts = 0, hits = 0;
    for (const a of articles) {
      const inText = a.text.includes(sought);
      let any = inText;
      for (const p of a.pictures) {
        const hit = sought !== "" && p.id.includes(sought);
        p.el.classList.toggle("off", sought !== "" && !inText && !hit);
        if (hit) { any = true; hits++; }
      }
      a.el.hidden = !any;
      if (any) texts++;
    }
    nothing.hidden = texts > 0 || articles.length === 0;
    const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
    said.textContent = sought === "" ? "" : `${count(texts, "text")}${hits ? ", " + count(hits, "picture") : ""}`;
  }

  let shown = null;
  function close() { if (shown) shown.classList.remove("on"); shown = null; card.hidden = true; }
  function open(button) {
    close();
    shown = button; button.classList.add("on");
    const picture = data.pictures[button.dataset.p];
    const look = button.className.replace(/\b(on|off)\b/g, "");
    const acts = node("div", "acts"), same = node("button", "", "All with this picture"), shut = node("button", "", "Close");
    same.type = shut.type = "button";
    same.onclick = () => { find.value = picture.id; close(); apply(); window.scrollTo({top: document.querySelector(".bar").offsetTop}); };
    shut.onclick = () => { const back = shown; close(); back.focus({preventScroll: true}); };
    acts.append(same, shut);
    card.replaceChildren(node("div", look + " big"), node("p", "id", button.title), ...(picture.name ? [node("p", "", picture.name)] : []),
                         ...(picture.gone ? [node("p", "", "No picture: " + picture.gone)] : []), acts);
    card.setAttribute("aria-label", button.title);
    card.hidden = false;
    place();
  }
  function place() { placeBeside(card, shown); }
  document.addEventListener("click", e => {
    const button = e.target.closest("button.pic");
    if (button) { if (shown === button) close(); else open(button); }
    else if (!card.contains(e.target)) close();
  });
  document.addEventListener("scroll", () => { if (shown) place(); }, {passive: true});
  window.addEventListener("resize", () => { if (shown) place(); });
  document.addEventListener("keydown", e => {
    if (e.key === "Escape" && shown) { const back = shown; close(); back.focus({preventScroll: true}); return; }
    if (e.key === "/" && document.activeElement !== find) { e.preventDefault(); find.focus(); return; }
    const step = {ArrowRight: 1, ArrowLeft: -1}[e.key], at = all.indexOf(document.activeElement);
    if (!step || at < 0) return;
    const seen = all.filter(b => !b.closest("article").hidden), next = seen[seen.indexOf(all[at]) + step];
    if (!next) return;
    e.preventDefault();
    next.focus({preventScroll: true}); next.scrollIntoView({block: "nearest"});
    if (shown) open(next);
  });
  find.addEventListener("input", () => { close(); apply(); });
  document.querySelector(".bar").addEventListener("submit", e => e.preventDefault());
  document.querySelector(".bar").hidden = false;
})();
