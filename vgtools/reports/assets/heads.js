// The panel of a VisualBERT's heads: the attention to regions of a picture, head by head, for a word of a text.
function attentionPanel(index, {ask, remember, fresh}) {
  const [seek, sought, shelf, bench, scene, about, phrase, given, words, looks, grid, most] =
    ["seek", "sought", "shelf", "bench", "scene", "about", "phrase", "given", "words", "looks", "grid", "most"].map(id => document.getElementById(id));
  const {layers, heads} = index.attention, MOST_SHOWN = 6, NAMED = 3;  // regions of the table; regions with a number on the picture
  const WORD = /[\p{L}\p{N}_](?:[\p{L}\p{N}_'’-]*[\p{L}\p{N}_])?|[^\p{L}\p{N}_\s]/gu;
  const percent = share => (100 * share).toFixed(1) + "\u00a0%";
  const total = weights => weights.reduce((a, b) => a + b, 0);
  const even = row => row.boxes.length / (row.tokens + row.boxes.length);
  const fail = error => { (bench.hidden ? sought : looks).textContent = error.message; };
  const drawing = (name, values, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  let photo = null, word = -1, head = null, rows = null;  // head: [layer, head] once it is chosen; rows: answers, word by word
  let asking = 0, timer = 0;

  // ---------------------------------------------------------------------------------- the pictures
  async function find(first = 0) {
    const text = seek.value, found = await ask(`regions?${new URLSearchParams({find: text, first})}`);
    if (text !== seek.value) return;
    const end = first + found.images.length, made = found.images.map(tile);
    shelf.querySelector(".more")?.remove();
    if (first) shelf.append(...made); else shelf.replaceChildren(...made);
    mark();
    sought.textContent = `${end.toLocaleString("en")} of ${found.count.toLocaleString("en")} pictures`;
    if (end < found.count) {
      const more = node("li", "more"), button = node("button", "", "More");
      button.type = "button"; button.onclick = () => find(end).catch(fail);
      more.append(button); shelf.append(more);
    }
  }
  function tile(one) {
    const item = node("li"), button = node("button"), image = node("img", "pic");
    image.alt = ""; image.loading = "lazy"; image.decoding = "async";
    image.onerror = () => image.classList.add("gone");
    image.src = fresh(`api/regions/${one.row}`);
    button.type = "button"; button.title = [one.name || one.image, ...(one.captions || [])].join("\n");
    button.dataset.row = one.row;
    button.setAttribute("aria-label", one.name || one.image);
    button.onclick = () => choose(one, one.captions?.[0] ?? phrase.value);
    button.append(image); item.append(button);
    return item;
  }
  function mark() {
    for (const button of shelf.querySelectorAll("[data-row]")) button.setAttribute("aria-pressed", String(Number(button.dataset.row) === photo?.row));
  }
  function choose(one, text) {
    photo = one; bench.hidden = false;
    mark();
    about.replaceChildren(node("span", "id", one.image), one.name ? " " + one.name : "");
    given.hidden = !one.captions?.length;
    given.querySelector("ul").replaceChildren(...(one.captions || []).map(caption => {
      const item = node("li"), button = node("button", "", caption);
      button.type = "button"; button.dir = "auto"; button.onclick = () => say(caption);
      item.append(button);
      return item;
    }));
    const image = new Image();
    image.onload = () => { if (photo === one && !rows) draw({width: image.naturalWidth, height: image.naturalHeight, boxes: []}); };
    image.src = fresh(`api/regions/${one.row}?side=640`);
    say(text);
  }

  // -------------------------------------------------------------------------------------- the text
  function say(text) {
    phrase.value = text; word = -1; rows = null; asking++;
    const parts = []; let end = 0;
    for (const match of text.matchAll(WORD)) {
      const button = node("button", "w", match[0]);
      button.type = "button"; button.tabIndex = parts.some(part => part.type) ? -1 : 0;  // one tab stop, arrows walk the words
      button.setAttribute("aria-pressed", "false");
      button.dataset.start = Array.from(text.slice(0, match.index)).length;  // the server counts code points
      parts.push(text.slice(end, match.index), button);
      end = match.index + match[0].length;
    }
    words.replaceChildren(...parts, text.slice(end));
    buttons().forEach((button, at) => { button.onclick = () => pick(at === word ? -1 : at).catch(fail); });
    show(); remember();
  }
  const buttons = () => [...words.querySelectorAll(".w")];
  async function pick(at) {
    const own = asking;
    word = at;
    if (at >= 0 && !rows) {
      looks.textContent = "looking…";
      const phrases = buttons().map(one => ({start: Number(one.dataset.start), end: Number(one.dataset.start) + Array.from(one.textContent).length}));
      const found = await ask("attention", JSON.stringify({text: phrase.value, image: photo.image, phrases}));
      if (own !== asking) return;
      rows = [found].flat();  // a text of one word has one row
    }
    show(); remember();
  }

  // ----------------------------------------------------------------------------- heads and regions
  const cells = [];
  function fill() {
    const top = node("div", "row");
    top.setAttribute("role", "row");
    top.append(node("span"), ...Array.from({length: heads}, (_, h) => node("span", "", String(h + 1))));
    top.setAttribute("aria-hidden", "true");
    grid.style.setProperty("--heads", heads);
    grid.append(top);
    for (let l = 0; l < layers; l++) {
      const line = node("div", "row");
      line.setAttribute("role", "row");
      line.append(node("span", "", String(l + 1)));
      for (let h = 0; h < heads; h++) {
        const cell = node("button");
        cell.type = "button"; cell.tabIndex = -1;
        cell.setAttribute("role", "gridcell");
        cell.onclick = () => { head = [l, h]; show(); remember(); };
        line.append(cell); cells.push(cell);
      }
      grid.append(line);
    }
  }
  function show() {
    buttons().forEach((button, at) => button.setAttribute("aria-pressed", String(at === word)));
    const row = word >= 0 && rows ? rows[word] : null;
    grid.hidden = most.hidden = !row?.attention;
    if (!row?.attention) {
      looks.textContent = row ? "The model has no token for this." : buttons().length ? "Click a word." : "Type a text about the picture.";
      if (rows) draw({...rows[0], boxes: []});
      return;
    }
    const shares = row.attention.flat().map(total);
    const at = head ? head[0] * heads + head[1] : shares.indexOf(Math.max(...shares));
    cells.forEach((cell, n) => {
      const name = `layer ${Math.floor(n / heads) + 1}, head ${n % heads + 1}: ${percent(shares[n])} on regions`;
      cell.textContent = Math.round(100 * shares[n]);
      cell.title = name;
      cell.setAttribute("aria-label", name);
      cell.setAttribute("aria-selected", String(n === at));
      cell.tabIndex = n === at ? 0 : -1;
      cell.style.setProperty("--v", shares[n].toFixed(3));
    });
    const own = row.attention[Math.floor(at / heads)][at % heads];
    const others = rows.filter((one, n) => n !== word && one.attention).map(one => one.attention[Math.floor(at / heads)][at % heads]);
    const mean = others.length ? own.map((_, r) => total(others.map(one => one[r])) / others.length) : null;
    const order = own.map((_, r) => r).sort((a, b) => own[b] - own[a] || a - b).slice(0, MOST_SHOWN);
    looks.textContent = `“${buttons()[word].textContent}”, layer ${Math.floor(at / heads) + 1}, head ${at % heads + 1}: ${percent(total(own))} on ${own.length} regions` +
      (mean ? `; other words of the text: ${percent(total(mean))}` : "") + `; even attention: ${percent(even(row))}.`;
    draw(row, own, order);
    table(row, own, mean, order);
  }
  function draw(row, own = [], order = []) {
    const {width, height, boxes} = row, size = Math.max(width, height) / 26;
    scene.setAttribute("viewBox", `0 0 ${width} ${height}`);
    scene.setAttribute("aria-label", looks.textContent);
    const parts = [drawing("image", {href: fresh(`api/regions/${photo.row}?side=640`), width, height, preserveAspectRatio: "none"})];
    const top = own[order[0]] || 1, strong = own.map(weight => (weight / top) ** 2), all = total(strong) || 1;
    const place = ([x1, y1, x2, y2]) => ({x: x1, y: y1, width: x2 - x1, height: y2 - y1});
    boxes.forEach((box, r) => {
      const rect = drawing("rect", {class: "r", "data-r": r, ...place(box)});
      // Many regions with the same weight are painted thinly: one upon the other they would hide the picture.
      rect.style.fillOpacity = (Math.min(.55, 1.6 / all) * strong[r]).toFixed(3);
      rect.append(drawing("title", {}, `${nameOf(row, r)}: ${percent(own[r])}`));
      parts.push(rect);
    });
    if (order.length) parts.push(drawing("rect", {class: "most", ...place(boxes[order[0]])}));
    const taken = [];
    for (const r of order.slice(0, NAMED)) {
      // Below the label of another region whose corner is near.
      const x = boxes[r][0] + size / 4;
      let y = Math.max(boxes[r][1], 0) + size;
      while (taken.some(([a, b]) => Math.abs(a - x) < 5 * size && Math.abs(b - y) < size)) y += size * 1.1;
      taken.push([x, y]);
      parts.push(drawing("text", {x: Math.min(x, width - 5 * size), y: Math.min(y, height - size / 4), "font-size": size}, `${r + 1}: ${percent(own[r])}`));
    }
    scene.replaceChildren(...parts);
  }
  const nameOf = (row, r) => `${r + 1} ${row.label ? row.label[r] : ""}`.trim();
  function table(row, own, mean, order) {
    const top = most.tHead.rows[0].cells, body = most.tBodies[0];
    top[2].hidden = !mean;
    body.replaceChildren(...order.map(r => {
      const line = node("tr"), name = node("th", "", nameOf(row, r));
      name.scope = "row";
      line.append(name, node("td", "", percent(own[r])), ...(mean ? [node("td", "", percent(mean[r]))] : []));
      line.onmouseenter = () => scene.querySelector(`[data-r="${r}"]`)?.classList.add("on");
      line.onmouseleave = () => scene.querySelector(`[data-r="${r}"]`)?.classList.remove("on");
      return line;
    }));
  }

  // -------------------------------------------------------------------------------- keys, address
  words.addEventListener("keydown", event => {
    const all = buttons(), at = all.indexOf(document.activeElement), step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step || at < 0) return;
    event.preventDefault();
    const next = Math.min(Math.max(at + step, 0), all.length - 1);
    all.forEach((button, n) => { button.tabIndex = n === next ? 0 : -1; });
    all[next].focus();
    if (word >= 0) pick(next).catch(fail);
  });
  grid.addEventListener("keydown", event => {
    const at = cells.indexOf(document.activeElement), step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads}[event.key];
    const next = cells[at + step];
    if (at < 0 || !next || Math.abs(step) === 1 && Math.floor((at + step) / heads) !== Math.floor(at / heads)) return;
    event.preventDefault();
    next.click(); next.focus();
  });
  bench.addEventListener("keydown", event => {
    if (event.key !== "Escape" || event.target === phrase) return;
    head = null;
    pick(-1).catch(fail);
    words.querySelector('[tabindex="0"]')?.focus();
  });
  phrase.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => say(phrase.value), 90); });
  seek.addEventListener("input", () => find().catch(fail));
  document.querySelector(".seek").addEventListener("submit", event => event.preventDefault());
  fill();
  find().catch(fail);
  return {
    state() {
      if (!photo) return {};
      return {i: photo.image, q: phrase.value, ...(word >= 0 ? {a: word} : {}), ...(head ? {h: `${head[0] + 1}.${head[1] + 1}`} : {})};
    },
    async recall(state) {
      const image = state.get("i"), at = /^\d+$/.test(state.get("a") || "") ? Number(state.get("a")) : -1;
      const [, l, h] = (/^(\d+)\.(\d+)$/.exec(state.get("h") || "") || []).map(Number);
      if (image === null) return;
      try {
        const [found] = await ask(`regions?${new URLSearchParams({image})}`);
        head = l >= 1 && l <= layers && h >= 1 && h <= heads ? [l - 1, h - 1] : null;
        choose(found, state.get("q") || "");
        if (at >= 0 && at < buttons().length) await pick(at);
      } catch (error) { fail(error); }
    },
  };
}
