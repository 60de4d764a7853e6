(() => {
  const [find, said, nothing] = ["find", "said", "nothing"].map(id => document.getElementById(id));
  const articles = [...document.querySelectorAll("article")].map(el => ({
    el, text: [...el.querySelectorAll(".s, .id")].map(p => p.textContent).join(" ").toLowerCase(),
    tiles: [...el.querySelectorAll("figure")].map(f => ({el: f, text: f.querySelector("b").textContent.toLowerCase()}))}));

  function apply() {
    const sought = find.value.trim().toLowerCase();
    let queries = 0;
    for (const a of articles) {
      const whole = a.text.includes(sought);
      for (const t of a.tiles) t.el.hidden = !(whole || t.text.includes(sought));
      const shown = a.tiles.filter(t => !t.el.hidden).length;
      a.el.hidden = shown === 0;
      queries += shown;
    }
    nothing.hidden = queries > 0 || articles.length === 0;
    said.textContent = sought === "" ? "" : `${queries.toLocaleString("en")} ${queries === 1 ? "query" : "queries"}`;
  }
  document.addEventListener("keydown", e => {
    if (e.key === "/" && document.activeElement !== find) { e.preventDefault(); find.focus(); }
  });
  find.addEventListener("input", apply);
  document.querySelector(".bar").addEventListener("submit", e => e.preventDefault());
  document.querySelector(".bar").hidden = false;
})();
