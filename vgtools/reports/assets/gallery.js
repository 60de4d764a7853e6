// The rows of a page. Rows in the window and near it are drawn; all others are space of their height, so that 10,000 rows take
// no more nodes than a hundred. The size of a row is about the number of its tiles.
const data = JSON.parse(document.getElementById("data").textContent);
const [main, bar, find, said, nothing, rest] = ["main", ".bar", "#find", "#said", "#nothing", "#rest"].map(name => document.querySelector(name));
const count = (n, one, many = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
// Size of a block, px drawn beyond the window, and sizes of a page that is drawn, or printed, whole: a tile takes up to four nodes.
const BLOCK = 40, NEAR = 600, WHOLE = 1200, PRINTED = 6000;

// Pictures that the first rows do not show get their rule when a row first shows them.
const late = new Map((data.late ?? []).flatMap(([image, ...names]) => names.map(name => [name, image])));
function look(picture) {
  const [name] = picture.look.split(" ");
  if (late.has(name)) [...document.styleSheets].at(-1).insertRule(`.${name}{background-image:${late.get(name)}}`);
  late.delete(name);
  return "pic " + picture.look;
}

// Rows are numbers of `data.rows`. size(row) returns the size of a row; draw(row, article) fills its article; match(text) returns the
// rows in which Find finds a text, summary(text) the line with their counts; close() closes the card.
function gallery({size, draw, match, summary, close}) {
  const [above, here, below] = ["space", "", "space"].map(name => node("div", name));
  let blocks = [], total = 0, px = 0, printing = false, width = innerWidth, seen = -1;
  const height = block => block.height || block.size * (px || 8);
  const sum = some => some.reduce((y, block) => y + height(block), 0);

  function article(row) {
    const {line} = data.rows[row], made = node("article"), link = node("a", "n", line);
    made.id = "s" + line;
    link.href = "#s" + line; link.title = "line " + line;
    made.classList.toggle("at", location.hash === link.hash);
    made.append(link);
    draw(row, made);
    return made;
  }
  function show(rows) {
    blocks = []; total = px = 0;
    for (const row of rows) {
      const more = size(row), last = blocks.at(-1);
      total += more;
      if (last && last.size + more <= BLOCK) { last.rows.push(row); last.size += more; }
      else blocks.push({rows: [row], size: more, height: 0, el: null});
    }
    here.replaceChildren();
    update();
  }
  // A block's height is known once it is drawn, which can bring others into the window.
  function update() {
    for (let steps = 0; steps < 8 && step(); steps++);
    const low = el => el.getBoundingClientRect().bottom > bar.offsetHeight, block = blocks.find(({el}) => el && low(el));
    seen = block && scrollY > main.offsetTop ? block.rows[[...block.el.children].findIndex(low)] : -1;
  }
  function step() {
    let start = 0, end = 0, y = above.getBoundingClientRect().top, drawn = 0;
    if (printing || (total <= WHOLE && find.value === "")) {
      while (end < blocks.length && (drawn += blocks[end].size) <= PRINTED) end++;
    } else {
      start = blocks.length;
      blocks.forEach((block, i) => {
        const next = y + height(block);
        if (next >= -NEAR && y <= innerHeight + NEAR) { start = Math.min(start, i); end = i + 1; }
        y = next;
      });
    }
    const wanted = blocks.slice(start, end);
    if (here.childElementCount === wanted.length && wanted.every(block => block.el)) return false;
    const kept = wanted.find(block => block.el && block.el.getBoundingClientRect().bottom > 0), top = kept && kept.el.getBoundingClientRect().top;
    for (const block of blocks) if (block.el && !wanted.includes(block)) { block.el.remove(); block.el = null; }
    wanted.forEach((block, i) => {
      if (block.el) return;
      block.el = node("div");
      block.el.append(...block.rows.map(article));
      here.insertBefore(block.el, here.children[i] ?? null);
    });
    for (const block of wanted) block.height = block.el.getBoundingClientRect().height;
    px ||= sum(wanted) / wanted.reduce((n, block) => n + block.size, 0);
    above.style.height = sum(blocks.slice(0, start)) + "px";
    below.style.height = sum(blocks.slice(end)) + "px";
    // The rows in the window stay in their place when heights above them change.
    if (kept) scrollBy(0, kept.el.getBoundingClientRect().top - top);
    return true;
  }
  function go(row) {
    const at = blocks.findIndex(block => block.rows.includes(row));
    if (at < 0) return false;
    scrollTo(0, scrollY + above.getBoundingClientRect().top + sum(blocks.slice(0, at)));
    update();
    document.getElementById("s" + data.rows[row].line).scrollIntoView();
    update();
    return true;
  }
  function follow() {
    const row = data.rows.findIndex(({line}) => location.hash === "#s" + line);
    for (const el of here.querySelectorAll("article")) el.classList.toggle("at", location.hash === "#" + el.id);
    if (row >= 0 && !go(row)) { search(""); go(row); }
  }
  const text = () => find.value.trim().toLowerCase();
  function apply() {
    // Places are read before anything changes, or the browser would lay the page out for them.
    const wanted = text(), top = main.offsetTop - bar.offsetHeight, below = scrollY > top, rows = match(wanted);
    nothing.hidden = rows.length > 0 || data.rows.length === 0;
    said.textContent = summary(wanted);
    if (below) scrollTo(0, top);
    show(rows);
  }
  function search(text) { close(); find.value = text; apply(); }

  document.addEventListener("keydown", e => { if (e.key === "/" && document.activeElement !== find) { e.preventDefault(); find.focus(); } });
  find.addEventListener("input", () => { close(); apply(); });
  bar.addEventListener("submit", e => e.preventDefault());
  document.addEventListener("scroll", update, {passive: true});
  window.addEventListener("hashchange", follow);
  window.addEventListener("resize", () => {
    if (innerWidth === width) { update(); return; }
    width = innerWidth;
    px = 0; here.replaceChildren();
    for (const block of blocks) { block.height = 0; block.el = null; }
    const row = seen;
    update();
    go(row);
  });
  window.addEventListener("beforeprint", () => {
    close(); printing = true; update();
    const drawn = here.querySelectorAll("article").length, rows = blocks.reduce((n, block) => n + block.rows.length, 0);
    rest.textContent = `The first ${drawn} of ${rows.toLocaleString("en")} rows.`;
    rest.hidden = drawn === rows;
  });
  window.addEventListener("afterprint", () => { printing = false; rest.hidden = true; update(); });

  if (data.rows.length) main.replaceChildren(above, here, below, nothing, rest);
  main.style.overflowAnchor = "none";  // `step` keeps the place
  rest.hidden = true; bar.hidden = false;
  apply();
  if (location.hash) follow();
  setTimeout(() => { match("\n"); match(text()); }, 100);  // so that the first key finds the texts prepared
  return {search, here};
}
