(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const percent = value => (value / 10).toFixed(value >= 100 ? 0 : 1);
  const step = value => "a" + Math.round(10 * Math.sqrt(value / 1000));
  const most = values => values.reduce((best, value, at) => value > values[best] ? at : best, 0);

  for (const article of document.querySelectorAll("article")) {
    const own = data[Number(article.dataset.n)], words = [...article.querySelectorAll(".w")];
    const boxes = [...article.querySelectorAll(".r")], said = article.querySelector(".said"), live = article.querySelector(".live");
    const sum = (layer, word, group) => group.regions.reduce((total, region) => total + own.weights[layer][word][region], 0);
    const grouped = new Set(own.groups.flatMap(group => group.regions));
    let word = -1, layer = own.heads.length - 1;
    said.textContent = "Click a word.";

    // The rows of the table: groups, then the single regions that matter for this word.
    function rows() {
      const found = own.groups.map(group => ({name: group.name, look: "c" + group.colour, values: own.heads.map((_, at) => sum(at, word, group))}));
      const loose = own.labels.map((label, region) => ({region, name: (label || "region " + (region + 1)) + (grouped.has(region) ? "" : "*"),
        values: own.heads.map((_, at) => own.weights[at][word][region])}));
      loose.sort((a, b) => Math.max(...b.values) - Math.max(...a.values) || a.region - b.region);
      return [found, loose.slice(0, 8)];
    }
    function table() {
      const made = node("table"), head = made.createTHead().insertRow(), body = made.createTBody(), [groups, loose] = rows();
      head.append(node("td", "", ""));
      own.heads.forEach((name, at) => {
        const cell = node("th"), button = node("button", "", name);
        cell.scope = "col";
        button.type = "button";
        button.setAttribute("aria-label", "layer " + (at + 1) + ", head " + name);
        button.setAttribute("aria-pressed", String(at === layer));
        button.onclick = () => { layer = at; show(); live.querySelectorAll("th button")[at].focus(); };
        cell.append(button);
        head.append(cell);
      });
      const add = (row, look) => {
        const line = body.insertRow(), name = node("th", "", "");
        line.className = look;
        name.scope = "row";
        if (row.look) name.append(node("i", row.look));
        name.append(row.name);
        name.title = row.name;
        line.append(name);
        row.values.forEach((value, at) => line.append(node("td", step(value) + (at === layer ? " now" : ""), percent(value))));
      };
      groups.forEach(row => add(row, ""));
      loose.forEach(row => add(row, "one"));
      return made;
    }
    function show() {
      words.forEach((button, at) => button.setAttribute("aria-pressed", String(at === word)));
      article.classList.toggle("on", word >= 0);
      live.hidden = word < 0;
      if (word < 0) {
        said.textContent = "Click a word.";
        boxes.forEach(box => { box.classList.remove("most"); box.style.fillOpacity = ""; });
        return;
      }
      const weights = own.weights[layer][word], first = most(weights), top = weights[first] || 1;
      const shares = weights.map(weight => (weight / top) ** 2), all = shares.reduce((a, b) => a + b, 0) || 1;
      boxes.forEach((box, region) => {
        // Many regions with the same weight are painted thinly: one upon the other they would hide the photo.
        box.style.fillOpacity = (Math.min(.6, 1.6 / all) * shares[region]).toFixed(3);
        box.classList.toggle("most", region === first && weights[first] > 0);
      });
      const parts = own.groups.map(group => [group.name, sum(layer, word, group)]).sort((a, b) => b[1] - a[1]).slice(0, 3);
      const total = weights.reduce((a, b) => a + b, 0);
      said.textContent = `“${own.words[word]}”, layer ${layer + 1}, head ${own.heads[layer]}: ` +
        [...parts.map(([name, value]) => `${name} ${percent(value)} %`), `all regions ${percent(total)} %`].join(", ") + ".";
      const at = live.scrollLeft;
      live.replaceChildren(table());
      live.scrollLeft = at;
    }
    words.forEach((button, at) => {
      button.tabIndex = at ? -1 : 0;  // one tab stop a caption, arrows walk the words
      button.onclick = () => { word = word === at ? -1 : at; show(); };
    });
    article.addEventListener("keydown", event => {
      const at = words.indexOf(document.activeElement), layers = own.heads.length;
      if (event.key === "Escape") { word = -1; show(); return; }
      if (at < 0) return;
      const side = {ArrowRight: 1, ArrowLeft: -1}[event.key], up = {ArrowDown: 1, ArrowUp: -1}[event.key];
      if (side) {
        const next = words[Math.min(Math.max(at + side, 0), words.length - 1)];
        words.forEach(button => { button.tabIndex = -1; });
        next.tabIndex = 0;
        next.focus();
        if (word >= 0) { word = words.indexOf(next); show(); }
      } else if (up && word >= 0) {
        layer = (layer + up + layers) % layers;
        show();
      } else return;
      event.preventDefault();
    });
    show();
  }
})();
