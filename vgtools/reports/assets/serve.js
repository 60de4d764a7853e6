(() => {
  const index = JSON.parse(document.getElementById("data").textContent);
  const [text, context, weight, file, said, near, lines, card, drop] =
    ["text", "context", "weight", "file", "said", "near", "lines", "card", "drop"].map(id => document.getElementById(id));
  const can = name => index.answers.includes(name);
  const MOST_LINES = 100, KEPT = 2000;  // lines of a page; answers that are kept
  // A browser keeps pictures: a server that starts again may have others at the same rows.
  const fresh = address => `${address}${address.includes("?") ? "&" : "?"}loaded=${Math.round(performance.timeOrigin)}`;
  const fixed = (score, digits = 2) => Number(score).toFixed(digits);

  // ------------------------------------------------------------------------------------- requests
  async function ask(path, body, signal, type = "application/json") {
    const how = {method: "POST", body, signal, headers: {"Content-Type": type}};
    const answer = await fetch("api/" + path, body === undefined ? {signal} : how), found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  }
  // Answers by question, oldest first.
  const answers = new Map(), names = new Map();
  async function rowsOf(name, query, texts, signal) {
    const key = line => `${name}?${query} ${line}`, lacking = [...new Set(texts)].filter(line => !answers.has(key(line)));
    if (lacking.length) {
      const found = await ask(`${name}?${query}`, JSON.stringify(lacking.map(line => ({text: line}))), signal);
      while (answers.size + lacking.length > KEPT && answers.size) answers.delete(answers.keys().next().value);
      lacking.forEach((line, i) => answers.set(key(line), found[i]));
    }
    return texts.map(line => answers.get(key(line)));
  }
  async function nameOf(row) {
    if (!names.has(row)) names.set(row, (await ask(`index?row=${row}`))[0]);
    return names.get(row);
  }
  const settings = more => new URLSearchParams({...more, ...(context ? {context: context.value} : {})}).toString();
  function tell(message, bad) { said.textContent = message; said.classList.toggle("bad", Boolean(bad)); }
  function fail(error) { if (error.name !== "AbortError") tell(error.message || String(error), true); }

  // ------------------------------------------------------------------------------------- drawing
  function picture(row, side = 160) {
    const made = node("img", "pic");
    made.alt = ""; made.loading = "lazy"; made.decoding = "async";
    made.onerror = () => made.classList.add("gone");
    if (index.pictures) made.src = fresh(`api/images/${row}?side=${side}`); else made.classList.add("gone");
    return made;
  }
  function strip(rows, scores, open) {
    const list = node("ol", "found");
    rows.forEach((row, i) => {
      if (row < 0) return;
      const item = node("li"), button = node("button");
      button.type = "button";
      button.dataset.row = row;
      button.setAttribute("aria-label", `picture ${row}, ${fixed(scores[i], 4)}`);
      button.append(picture(row));
      button.onclick = () => open(row, scores[i], button);
      item.append(button, fixed(scores[i]));
      list.append(item);
    });
    return list;
  }
  function article(line, number, vokens, found) {
    const made = node("article"), points = Array.from(line);
    made.dataset.line = number;
    if (vokens) {
      const words = node("p", "s");
      words.dir = "auto";
      let done = 0;
      vokens.spans.forEach(([start, end], n) => {
        if (start > done) words.append(points.slice(done, start).join(""));
        done = Math.max(done, end);
        const t = node("span", "t"), row = vokens.vokens[n], score = vokens.scores[n];
        if (row >= 0) {
          const bar = node("b"), share = index.calibrated ? score : Math.max(0, score);
          bar.style.width = `${Math.round(100 * Math.min(1, share))}%`;
          Object.assign(t.dataset, {n, row, score});
          t.tabIndex = words.querySelector("[data-n]") ? -1 : 0;  // one tab stop per line
          t.setAttribute("role", "button");
          t.setAttribute("aria-label", `${points.slice(start, end).join("")}: picture ${row}, ${fixed(score, 4)}`);
          t.classList.toggle("low", Boolean(index.calibrated) && score < 0.5);
          t.append(picture(row), bar);
        }
        t.append(node("span", "", points.slice(start, end).join("") || "·"));
        words.append(t);
      });
      words.append(points.slice(done).join(""));
      made.append(words);
    } else made.append(node("p", "s", line));
    if (found && found.images.length) {
      made.append(node("p", "title", "Pictures of the whole text"));
      made.append(strip(found.images, found.scores, (row, score, from) => openPicture(from, line, row, score)));
    }
    return made;
  }
  function count(number, noun) { return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`; }
  function summary(rows, took) {
    const scores = rows.flatMap(row => row ? row.scores.filter((_, i) => row.vokens[i] >= 0) : []);
    const parts = [];
    if (scores.length) {
      parts.push(count(scores.length, "picture"));
      if (index.calibrated) {
        parts.push(`${scores.filter(score => score >= 0.5).length} shown in colour, right more often than wrong`);
        parts.push(`${Math.round(scores.reduce((a, b) => a + b, 0))} of all expected right`);
      } else parts.push("scores are relevance, not probabilities");
    }
    return [...parts, `${Math.round(took)} ms`].join("; ");
  }

  // -------------------------------------------------------------------------------------- answers
  let running = null, timer = 0;
  async function update() {
    if (running) running.abort();
    running = new AbortController();
    const signal = running.signal, all = text.value.split("\n").filter(line => line.trim()), shown = all.slice(0, MOST_LINES);
    const began = performance.now();
    try {
      const [vokens, found] = await Promise.all([
        can("vokenize") ? rowsOf("vokenize", settings(), shown, signal) : [],
        can("retrieve") ? rowsOf("retrieve", "k=10", shown, signal) : [],
      ]);
      if (signal.aborted) return;
      shown.forEach((line, i) => {
        const key = `${context ? context.value : ""} ${line}`, old = lines.children[i];
        if (old && old.dataset.key === key) return;
        const made = article(line, i, vokens[i], found[i]);
        made.dataset.key = key;
        if (old) old.replaceWith(made); else lines.append(made);
      });
      while (lines.children.length > shown.length) lines.lastChild.remove();
      const more = all.length > shown.length ? `; the first ${MOST_LINES} lines of ${all.length}` : "";
      tell(shown.length ? summary(vokens, performance.now() - began) + more : "");
      if (wanted) { const t = tokenAt(...wanted); wanted = null; if (t) openWord(t); }
    } catch (error) { fail(error); }
  }
  function later() { clearTimeout(timer); timer = setTimeout(() => { remember(); update(); }, 90); }

  // --------------------------------------------------------------------------------- the address
  let wanted = null;  // line and token that the address names
  function remember() {
    const state = new URLSearchParams(text.value ? {t: text.value} : {});
    if (text.value && context && context.value !== String(index.context)) state.set("c", context.value);
    if (shown && shown.dataset.n) state.set("w", `${shown.closest("article").dataset.line}.${shown.dataset.n}`);
    for (const [key, value] of Object.entries(panel ? panel.state() : {})) state.set(key, value);
    history.replaceState(null, "", state.size ? "#" + state : location.pathname + location.search);
  }
  function recall() {
    const state = new URLSearchParams(location.hash.slice(1)), word = /^(\d+)\.(\d+)$/.exec(state.get("w") || "");
    text.value = state.get("t") || "";
    if (context) context.value = state.get("c") ?? index.context;
    weigh();
    wanted = word ? [word[1], word[2]] : null;
    update();
    if (panel) panel.recall(state);
  }
  function weigh() { if (context) weight.value = fixed(context.value); }
  const tokenAt = (line, n) => lines.querySelector(`article[data-line="${line}"] .t[data-n="${n}"]`);

  // ------------------------------------------------------------------------------------ the card
  let shown = null;
  function close() {
    if (shown) shown.classList.remove("on");
    for (const t of document.querySelectorAll(".same")) t.classList.remove("same");
    shown = null; card.hidden = true;
    remember();
  }
  const phone = matchMedia("(max-width: 640px)");
  // Below or above its word; where there is no room, to the right or left, so that the word is seen.
  function place() {
    if (!shown) return;
    placeBeside(card, shown);
    const box = shown.getBoundingClientRect(), top = card.getBoundingClientRect().top, w = card.offsetWidth;
    if (phone.matches || top >= box.bottom || top + card.offsetHeight <= box.top) return;
    const right = box.right + 8, left = box.left - w - 8;
    card.style.left = (right + w < document.documentElement.clientWidth - 8 || left < 8 ? Math.min(right, document.documentElement.clientWidth - w - 8) : left) + "px";
  }
  // On a phone the card has the lower end of the window: its word moves above it.
  function reveal() {
    place();
    const hidden = shown && phone.matches ? shown.getBoundingClientRect().bottom + 12 - card.getBoundingClientRect().top : 0;
    if (hidden > 0) window.scrollBy(0, hidden);
  }
  async function fill(line, span, row, score, title, more) {
    const big = node("figure"), head = node("h2", "", title), id = node("p", "id"), name = node("p"), acts = node("div", "acts"), shut = node("button", "", "Close");
    const image = picture(row, 640);
    image.classList.remove("pic"); image.onload = reveal;
    big.append(image);
    head.append(node("b", "", fixed(score, 4)));
    shut.type = "button"; shut.onclick = () => { const back = shown; close(); if (back) back.focus({preventScroll: true}); };
    const says = node("p", "", index.calibrated && span ? `picture ${row}, right with probability ${fixed(score)}` : `picture ${row}, relevance ${fixed(score, 4)}`);
    if (can("locate")) {
      const heat = node("button", "", "Where is it?");
      heat.type = "button";
      heat.onclick = () => locate(line, span, row, big, says).catch(fail);
      acts.append(heat);
    }
    acts.append(shut);
    card.replaceChildren(big, head, name, id, says, ...more, acts);
    card.setAttribute("aria-label", title);
    card.hidden = false;
    place();
    const known = await nameOf(row);
    name.textContent = known.name; id.textContent = known.image;
    reveal();
  }
  async function openWord(t) {
    const art = t.closest("article"), line = text.value.split("\n").filter(l => l.trim())[art.dataset.line], n = Number(t.dataset.n);
    if (shown) close();
    shown = t; t.classList.add("on");
    const word = t.textContent, others = [...lines.querySelectorAll(".t[data-n]")].filter(o => o !== t && o.textContent.toLowerCase() === word.toLowerCase());
    for (const other of others) other.classList.add("same");
    remember();
    try {
      const [row] = await rowsOf("vokenize", settings({k: 12}), [line]);
      if (shown !== t) return;
      const more = [strip(row.vokens[n], row.scores[n], (other, score) => show(other, score))];
      if (others.length) {
        const list = strip(others.map(o => Number(o.dataset.row)), others.map(o => Number(o.dataset.score)), (_, __, from) => {
          const at = [...list.querySelectorAll("button")].indexOf(from);
          others[at].scrollIntoView({block: "center"}); openWord(others[at]);
        });
        more.push(node("p", "title", "The same word elsewhere"), list);
      }
      const show = (other, score) => fill(line, row.spans[n], other, score, word, more).catch(fail);
      await show(row.vokens[n][0], row.scores[n][0]);
    } catch (error) { fail(error); }
  }
  function openPicture(from, line, row, score) {
    if (shown === from) { close(); return; }
    if (shown) close();
    shown = from; from.classList.add("on");
    fill(line, null, row, score, line.length > 60 ? line.slice(0, 60) + "…" : line, []).catch(fail);
  }
  async function locate(line, span, row, big, says) {
    const known = await nameOf(row), query = {text: line, image: known.image, ...(span ? {span} : {})};
    const image = big.querySelector("img");
    await image.decode().catch(() => {});  // a picture has its size once it is there
    const size = image.naturalWidth ? {width: image.naturalWidth, height: image.naturalHeight} : {};
    const {grid, heat, point, frame = [0, 0, 1, 1]} = await ask("locate", JSON.stringify({...query, ...size}));
    if (!point) { says.textContent = "no heat: the text has no known word"; return; }
    const map = node("canvas"), low = Math.min(...heat), high = Math.max(...heat), [h, w] = grid;
    map.width = w; map.height = h;
    const pen = map.getContext("2d"), dots = pen.createImageData(w, h);
    heat.forEach((value, i) => {
      const x = high > low ? (value - low) / (high - low) : 0;  // white to red
      dots.data.set([255, 255 * (1 - x), 255 * (1 - x) ** 2, 255], 4 * i);
    });
    pen.putImageData(dots, 0, 0);
    Object.assign(map.style, {left: `${100 * frame[0]}%`, top: `${100 * frame[1]}%`, width: `${100 * (frame[2] - frame[0])}%`, height: `${100 * (frame[3] - frame[1])}%`});
    big.querySelector("canvas")?.remove();
    big.append(map);
  }

  // ------------------------------------------------------------------------------------ pictures
  async function neighbours(picked) {
    if (index.lacks.neighbours) { tell(`A picture's neighbours: this ${index.lacks.neighbours}`, true); return; }
    tell("looking…");
    try {
      const found = await ask("neighbours?k=16", picked, undefined, picked.type || "application/octet-stream");
      const own = node("img", "own"), shut = node("button", "shut", "Close"), side = node("div"), row = node("div"), words = node("p", "words");
      own.src = URL.createObjectURL(picked); own.alt = picked.name || "the picture";
      own.onload = () => URL.revokeObjectURL(own.src);
      shut.type = "button"; shut.onclick = () => { near.hidden = true; near.replaceChildren(); };
      found.words.slice(0, 12).forEach((word, i) => {
        const item = node("span", "", word + " ");
        item.append(node("small", "", fixed(found.word_scores[i])));
        words.append(item, " ");
      });
      side.append(words, strip(found.images, found.scores, (other, score, from) => openPicture(from, found.words[0] || "", other, score)), shut);
      row.append(own, side);
      near.replaceChildren(node("p", "title", `Nearest to ${picked.name || "the picture"}: words, and pictures of the bank`), row);
      near.hidden = false;
      near.scrollIntoView({block: "nearest"});
      tell(count(found.images.length, "neighbour"));
    } catch (error) { fail(error); }
  }
  const carried = data => [...(data ? data.files : [])].find(one => one.type.startsWith("image/"));
  document.addEventListener("dragover", e => { if (e.dataTransfer.types.includes("Files")) { e.preventDefault(); drop.hidden = !can("neighbours"); } });
  document.addEventListener("dragleave", e => { if (!e.relatedTarget) drop.hidden = true; });
  document.addEventListener("drop", e => {
    drop.hidden = true;
    const picked = carried(e.dataTransfer);
    if (picked) { e.preventDefault(); neighbours(picked); }
  });
  document.addEventListener("paste", e => { const picked = carried(e.clipboardData); if (picked) { e.preventDefault(); neighbours(picked); } });
  if (file) file.addEventListener("change", () => { if (file.files[0]) neighbours(file.files[0]); file.value = ""; });

  // --------------------------------------------------------------------------------- keys, clicks
  document.addEventListener("click", e => {
    const t = e.target.closest(".t[data-n]");
    if (t) { if (t === shown) close(); else openWord(t); }
    else if (shown && !card.contains(e.target) && !e.target.closest(".found")) close();
  });
  document.addEventListener("keydown", e => {
    const typing = document.activeElement.matches("input, textarea");
    if (e.key === "Escape" && shown) { const back = shown; close(); back.focus({preventScroll: true}); return; }
    if (e.key === "/" && !typing) { e.preventDefault(); text.focus(); return; }
    const t = e.target.closest && e.target.closest(".t[data-n]");
    if (!t) return;
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); if (t === shown) close(); else openWord(t); return; }
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key], all = [...lines.querySelectorAll(".t[data-n]")];
    const next = step && all[all.indexOf(t) + step];
    if (!next) return;
    e.preventDefault();
    for (const stop of next.closest("article").querySelectorAll('.t[tabindex="0"]')) stop.tabIndex = -1;
    next.tabIndex = 0;
    next.focus({preventScroll: true}); next.scrollIntoView({block: "nearest"});
    if (shown) openWord(next);
  });
  document.addEventListener("scroll", place, {passive: true});
  window.addEventListener("resize", place);
  window.addEventListener("hashchange", recall);
  text.addEventListener("input", () => { if (shown) close(); later(); });
  if (context) context.addEventListener("input", () => { if (shown) close(); weigh(); later(); });
  document.querySelector(".ask").addEventListener("submit", e => e.preventDefault());
  const panel = index.attention ? attentionPanel(index, {ask, remember, fresh}) : null;
  recall();
  if (!location.hash) text.focus();
})();
