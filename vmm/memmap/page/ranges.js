// The ranges of a device: all as cells, and those that the filter finds as rows.

const rowsShown = 12;

const filters = {
  all: ["all", () => true],
  awake: ["awake", r => r.kind === "range" && !r.asleep],
  asleep: ["asleep", r => r.asleep],
  ahead: ["with memory beyond their length", r => r.ahead > 0],
  retiring: ["retiring", r => r.retiring > 0],
  quarantined: ["quarantined", r => r.quarantined > 0],
  shared: ["shared", r => !!r.sharers],
  pools: ["of pools", r => !!r.pool],
};

const orders = {
  addr: ["address", (a, b) => a.addr.length - b.addr.length || (a.addr < b.addr ? -1 : 1)],
  committed: ["memory", (a, b) => b.committed - a.committed],
  len: ["length", (a, b) => b.len - a.len],
  size: ["addresses", (a, b) => b.size - a.size],
  ahead: ["memory beyond it", (a, b) => b.ahead - a.ahead],
  since: ["age", (a, b) => new Date(a.since) - new Date(b.since)],
  name: ["name", (a, b) => (a.name || "") < (b.name || "") ? -1 : (a.name || "") > (b.name || "") ? 1 : 0],
  made: ["where made", (a, b) => a.made < b.made ? -1 : a.made > b.made ? 1 : 0],
};

// dominant is the state that a cell shows.
function dominant(r) {
  if (r.quarantined) return "quarantined";
  if (r.asleep) return "asleep";
  if (r.retiring > r.len) return "retiring";
  if (r.pool) return "poolUsed";
  if (isPlain(r)) return r.committed ? "chunks" : "reserved";
  return r.len ? "used" : r.committed ? "ahead" : "reserved";
}

const sharerNames = r => (r.sharers || []).map(s => [s.object, s.instance, s.pid ? "pid " + s.pid : ""].join(" ")).join(" ");

function rangeText(r) {
  const size = isPlain(r) ? bytes(r.committed) + " mapped" : r.asleep ? bytes(r.len) + " asleep" : bytes(r.len) + " of " + bytes(r.committed);
  return r.addr + ", " + named(r) + ", " + size + ", made at " + maker(r);
}

function ranges(name) {
  let device = null, found = [], first = 0, selected = null, cursor = 0, cells = {columns: 1, size: 8, each: 1, n: 0}, version = -1;
  const select = (label, options, onchange) => {
    const s = el("select", {onchange: () => onchange(s.value)}, ...Object.entries(options).map(([value, [text]]) => el("option", {value}, text)));
    return [el("label", {}, label + " ", s), s];
  };
  const refilter = () => {
    first = 0;
    search(true);
  };
  const text = el("input", {type: "search", placeholder: "address, name, file, pool, process", spellcheck: false, oninput: refilter});
  const [stateLabel, state] = select("State", filters, refilter);
  const [orderLabel, order] = select("Sort by", orders, refilter);
  const [scaleLabel, scale] = select("Scale", {own: ["each its own"], one: ["one for all"]}, () => paintRows());
  const total = el("p", {className: "note", role: "status"});
  const hint = el("p", {className: "note hint"}), spoken = el("p", {className: "hidden", "aria-live": "polite"});
  const all = surface("cells", "All ranges as cells", cellsHeight, paintCells);
  const rows = el("ol", {className: "rows"});
  const page = by => {
    first = Math.max(0, Math.min(first + by * rowsShown, Math.floor((found.length - 1) / rowsShown) * rowsShown));
    showRows();
  };
  const back = el("button", {type: "button", onclick: () => page(-1)}, "Previous"), forth = el("button", {type: "button", onclick: () => page(1)}, "Next");
  const where = el("span", {});
  const info = detail(() => choose(null));
  const node = el("section", {className: "panel"},
    el("div", {className: "head"}, el("h3", {}, "Ranges"), total),
    el("div", {className: "filters"}, el("label", {className: "grow"}, "Filter ", text), stateLabel, orderLabel, scaleLabel),
    all.node, hint, spoken,
    legend([["used", "used"], ["ahead", "beyond the length"], ["retiring", "retiring"], ["quarantined", "quarantined"], ["asleep striped", "asleep, contents on the host"],
      ["chunks", "chunks of the program"], ["poolUsed", "chunks of pools"], ["shared thin", "mapped by other processes"], ["reserved", "addresses alone"]]),
    rows, el("div", {className: "pager", role: "group", "aria-label": "Pages of ranges"}, back, where, forth), info.node);
  all.node.tabIndex = 0;
  all.node.addEventListener("pointermove", e => point(at(e)));
  all.node.addEventListener("click", e => {
    point(at(e));
    pickCell();
  });
  all.node.addEventListener("keydown", e => {
    const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cells.columns, ArrowDown: cells.columns, Home: -1e9, End: 1e9}[e.key];
    if (by) {
      point(Math.max(0, Math.min(cells.n - 1, cursor + by)));
      setText(spoken, hint.textContent);
    } else if (e.key === "Enter" || e.key === " ") pickCell();
    else return;
    e.preventDefault();
  });

  function at(e) {
    const box = all.node.getBoundingClientRect();
    const column = Math.floor((e.clientX - box.left) / cells.size), row = Math.floor((e.clientY - box.top) / cells.size);
    return column < cells.columns ? row * cells.columns + column : -1;
  }

  function point(i) {
    if (i < 0 || i >= cells.n) return;
    cursor = i;
    tell();
    all.draw();
  }

  function tell() {
    const r = found[cursor * cells.each];
    setText(hint, r ? rangeText(r) + (cells.each > 1 ? ", and the next " + count(cells.each - 1) : "") : "");
  }

  function pickCell() {
    const i = cursor * cells.each;
    if (!found[i]) return;
    first = Math.floor(i / rowsShown) * rowsShown;
    choose(found[i].addr);
  }

  function choose(addr) {
    selected = addr;
    showRows();
    all.draw();
  }

  // paintCells draws a cell for each range, or for several if there are too many.
  function paintCells(c, width) {
    const n = found.length, most = matchMedia("(max-width: 600px)").matches ? 200 : 132;
    let size = Math.max(4, Math.min(22, Math.floor(Math.sqrt(width * most / Math.max(n, 1)))));
    while (size > 4 && Math.ceil(n / Math.floor(width / size)) * size > most) size--;
    const columns = Math.max(1, Math.floor(width / size)), each = Math.max(1, Math.ceil(n / (columns * Math.floor(most / size))));
    cells = {columns, size, each, n: Math.ceil(n / each)};
    const gap = size > 6 ? 2 : 1, side = size - gap;
    for (let i = 0; i < cells.n; i++) {
      const x = i % columns * size, y = Math.floor(i / columns) * size;
      const r = found[i * each];
      c.fillStyle = color(r.committed ? "ahead" : "reserved");
      c.fillRect(x, y, side, side);
      const full = r.asleep || isPlain(r) || !r.committed ? 1 : Math.min(1, r.len / r.committed);
      const h = Math.max(r.len || isPlain(r) ? 1 : 0, Math.round(side * full));
      c.fillStyle = color(dominant(r));
      c.fillRect(x, y + side - h, side, h);
      if (r.asleep) hatch(c, x, y, side, side);
      if (r.sharers) {
        c.fillStyle = color("shared");
        c.fillRect(x, y + side - Math.max(2, side / 5), side, Math.max(2, side / 5));
      }
      const isSelected = selected && r.addr === selected;
      if (isSelected || i === cursor && document.activeElement === all.node) {
        c.strokeStyle = color("ink");
        c.lineWidth = 2;
        c.strokeRect(x, y, side, side);
      }
    }
  }

  function cellsHeight() {
    const width = all.node.clientWidth || 300;
    const probe = {fillRect() { }, strokeRect() { }, save() { }, restore() { }, beginPath() { }, rect() { }, clip() { }, moveTo() { }, lineTo() { }, stroke() { }};
    paintCells(probe, width);
    return Math.max(cells.size, Math.ceil(cells.n / cells.columns) * cells.size);
  }

  function search(again) {
    if (!again && version === device.rangesVersion) return;
    version = device.rangesVersion;
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean), ok = filters[state.value][1];
    found = [];
    for (const r of device.ranges.values()) {
      if (!ok(r)) continue;
      if (words.length) {
        const hay = (r.addr + " " + r.kind + " " + (r.stack || [r.made]).join(" ") + " " + maker(r) + " " + (r.pool || "") + " " + (r.name || "") + " " + sharerNames(r)).toLowerCase();
        if (!words.every(w => hay.includes(w))) continue;
      }
      found.push(r);
    }
    found.sort(orders[order.value][1]);
    first = Math.max(0, Math.min(first, Math.floor((found.length - 1) / rowsShown) * rowsShown));
    cursor = Math.min(cursor, Math.max(0, found.length - 1));
    let committed = 0;
    for (const r of found) committed += r.committed;
    const whole = device.ranges.size;
    setText(total, (found.length === whole ? many(whole, "range or reservation", "ranges and reservations") : count(found.length) + " of " + count(whole)) + ", " + bytes(committed) + " mapped");
    all.node.setAttribute("aria-label", "Cells of " + many(found.length, "range") + ", arrow keys move, Enter shows one");
    if (hint.textContent) tell(); // it may have changed, or be another
    all.draw();
    showRows();
  }

  function makeRow() {
    const addr = el("code"), what = el("span", {className: "what"}), badges = el("span", {className: "badges"}), size = el("span", {className: "number"});
    const bar = surface("runs", "", 20, (c, w, h) => {
      if (!li.range) return;
      const r = li.range, widest = scale.value === "one" ? found.reduce((n, x) => Math.max(n, extentOf(x)), 1) : Math.max(1, extentOf(r) * 1.12);
      paintRange(c, r, 0, widest, 0, 0, w, h);
    });
    const button = el("button", {type: "button", onclick: () => choose(selected === li.range.addr ? null : li.range.addr)},
      el("span", {className: "top"}, addr, what, badges, size), bar.node);
    const li = el("li", {}, button);
    Object.assign(li, {addr, what, badges, size, bar, button});
    return li;
  }

  function showRows() {
    const visible = found.slice(first, first + rowsShown);
    keyed(rows, visible, r => r.addr, makeRow, (li, r) => {
      li.range = r;
      setText(li.addr, r.addr);
      setText(li.what, named(r) + " · " + maker(r));
      li.what.title = (r.stack || [r.made]).join("\n");
      const badges = [];
      if (r.asleep) badges.push("asleep");
      if (r.sharers) badges.push("shared with " + r.sharers.length);
      if (r.retiring) badges.push("retiring");
      if (r.quarantined) badges.push("quarantined");
      keyed(li.badges, badges, b => b, b => el("span", {className: "badge " + b.split(" ")[0]}, b), () => { });
      setText(li.size, isPlain(r) ? bytes(r.committed) + " mapped" : r.asleep ? bytes(r.len) + " asleep" : bytes(r.len) + " of " + bytes(r.committed));
      li.size.title = isPlain(r) ? exact(r.committed) : exact(r.len) + " below Len, " + exact(r.committed) + " mapped, " + exact(r.size) + " reserved";
      li.bar.node.setAttribute("aria-label", many(r.chunks.reduce((n, x) => n + x.count, 0), "chunk"));
      li.button.setAttribute("aria-expanded", r.addr === selected);
    });
    paintRows();
    back.disabled = first === 0;
    forth.disabled = first + rowsShown >= found.length;
    setText(where, found.length ? count(first + 1) + " – " + count(Math.min(first + rowsShown, found.length)) + " of " + count(found.length) : "none");
    info.show(selected && device.ranges.get(selected));
  }

  function paintRows() {
    for (const li of rows.children) li.bar.draw();
  }

  return {
    node,
    update(d) {
      device = d;
      search(false);
    },
    pick(what) {
      text.value = what;
      refilter();
      node.scrollIntoView({block: "nearest"});
      text.focus();
    },
  };
}
