(() => {
  const {rows, photos} = data;
  // A row is a photo and the queries for it, by text.
  // The page has the photos of its first rows already.
  photos.forEach((photo, row) => { photo.uri ||= document.getElementById("p" + row)?.getAttribute("href") ?? ""; });
  let sought = "", queries = 0;
  const has = text => text.toLowerCase().includes(sought);
  const fitting = (row, {text, tiles}) => has(photos[rows[row].photo].id) || has(text) ? tiles : tiles.filter(tile => has(tile.sought));
  const found = row => rows[row].groups.reduce((n, group) => n + fitting(row, group).length, 0);
  function match(wanted) {
    sought = wanted; queries = 0;
    return rows.flatMap((_, row) => { const n = found(row); queries += n; return n ? [row] : []; });
  }
  const summary = wanted => wanted === "" ? "" : count(queries, "query", "queries");

  const drawing = (name, look, values) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    if (look) made.setAttribute("class", look);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    return made;
  };
  const place = ([x, y, width, height]) => ({x, y, width, height});
  function figure(photo, tile) {
    const {width, height, uri} = photo, made = node("figure"), under = node("figcaption");
    const pic = drawing("svg", uri ? "pic" : "pic gone", {viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": tile.title});
    pic.append(drawing("title", "", {}));
    pic.firstChild.textContent = tile.title;
    if (uri) pic.append(drawing("image", "", {width, height, href: uri}));
    if (tile.heat) pic.append(drawing("image", "heat", {...place(tile.heat.place), preserveAspectRatio: "none", filter: "url(#heat)", href: tile.heat.uri}));
    for (const name of ["halo", "edge"]) for (const box of tile.boxes) pic.append(drawing("rect", name, place(box)));
    if (tile.point) for (const name of ["halo", "ring"]) pic.append(drawing("circle", name, {cx: tile.point[0], cy: tile.point[1], r: 7}));
    under.append(node("b", "", tile.sought.trim() ? tile.sought : "an empty line"));
    under.firstChild.dir = "auto";
    if (tile.verdict || !tile.heat) under.append(" ", node("span", tile.hit ? "good" : "bad", tile.verdict || "no heat"));
    made.append(pic, under);
    return made;
  }
  function draw(row, article) {
    const photo = photos[rows[row].photo];
    article.append(node("p", "id", photo.id + (photo.gone ? " · no picture: " + photo.gone : "")));
    for (const group of rows[row].groups) {
      const {text} = group, shown = fitting(row, group);
      if (shown.length === 0) continue;
      if (text.trim()) { article.append(node("p", "s", text)); article.lastChild.dir = "auto"; }
      article.append(node("div", "tiles"));
      article.lastChild.append(...shown.map(tile => figure(photo, tile)));
    }
  }
  gallery({match, summary, draw, close: () => {}, size: row => 4 + 2 * found(row)});
})();
