// Pools: fragmentation by chunk, and free bytes by stream and by size of block.

const poolStates = [["used", "poolUsed"], ["in_slabs", "inSlabs"], ["pending", "pending"], ["idle", "poolFree"]];

function poolPanel() {
  let pool = null, layout = {columns: 1, width: 10, height: 30, each: 1, n: 0};
  const title = el("h4"), facts = el("dl", {className: "facts"}), hint = el("p", {className: "note hint"});
  const spoken = el("p", {className: "hidden", "aria-live": "polite"});
  const grid = surface("cells", "", gridHeight, paint);
  const streams = table("Free by stream", ["Stream", "Pending", "In slabs"]);
  const classes = table("Short blocks by size, of all streams", ["Size", "Slabs", "Blocks", "Free", "Taken"]);
  const node = el("article", {className: "pool"}, title, facts, grid.node, hint, spoken,
    legend([["poolUsed", "in blocks"], ["inSlabs", "free in slabs"], ["pending", "pending"], ["poolFree", "idle"], ["reserved", "cannot be used now"]]),
    el("div", {className: "columns"}, streams.node, classes.node));
  grid.node.addEventListener("pointermove", e => {
    const box = grid.node.getBoundingClientRect();
    const i = Math.floor((e.clientY - box.top) / layout.height) * layout.columns + Math.floor((e.clientX - box.left) / layout.width);
    if (i < 0 || i >= layout.n) return;
    cursor = i;
    setText(hint, chunkText(group(i)));
  });
  let cursor = 0;
  grid.node.tabIndex = 0;
  grid.node.addEventListener("keydown", e => {
    const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -layout.columns, ArrowDown: layout.columns, Home: -1e9, End: 1e9}[e.key];
    if (!by) return;
    e.preventDefault();
    cursor = Math.max(0, Math.min(layout.n - 1, cursor + by));
    if (layout.n) setText(hint, chunkText(group(cursor)));
    setText(spoken, hint.textContent);
    grid.draw();
  });

  // group is the sum of the chunks that a cell shows.
  function group(i) {
    const all = pool.chunks.slice(i * layout.each, (i + 1) * layout.each);
    const sum = {off: all[0].off, n: all.length, size: 0, used: 0, in_slabs: 0, pending: 0, idle: 0, longest: 0};
    for (const c of all) {
      for (const key of ["size", "used", "in_slabs", "pending", "idle"]) sum[key] += c[key];
      sum.longest = Math.max(sum.longest, c.longest);
    }
    return sum;
  }

  function chunkText(c) {
    const free = c.idle + c.pending;
    return many(c.n, "chunk") + " at " + bytes(c.off) + ": " + bytes(c.used) + " in blocks, " + bytes(c.in_slabs) + " free in slabs, " +
      bytes(c.pending) + " pending, " + bytes(c.idle) + " idle" + (free ? ", the longest free run " + bytes(c.longest) : "");
  }

  function paint(c, width) {
    if (!pool) return;
    const n = pool.chunks.length, most = 10, least = 8;
    const w = Math.max(least, Math.min(28, Math.floor(width / Math.max(n, 1)))), columns = Math.max(1, Math.floor(width / w)), rows = Math.min(most, Math.ceil(n / columns) || 1);
    const each = Math.max(1, Math.ceil(n / (columns * rows)));
    layout = {columns, width: w, height: 34, each, n: Math.ceil(n / each)};
    for (let i = 0; i < layout.n; i++) {
      const g = group(i), x = i % columns * w, h = layout.height - 4;
      let y = Math.floor(i / columns) * layout.height + h;
      c.fillStyle = color("reserved");
      c.fillRect(x, y - h, w - 2, h);
      for (const [key, name] of poolStates) {
        const part = g[key] / g.size * h;
        c.fillStyle = color(name);
        c.fillRect(x, y - part, w - 2, part);
        y -= part;
      }
      if (i === cursor && document.activeElement === grid.node) {
        c.strokeStyle = color("ink");
        c.lineWidth = 2;
        c.strokeRect(x + 1, Math.floor(i / columns) * layout.height + 1, w - 4, h - 2);
      }
    }
  }

  function gridHeight() {
    const width = grid.node.clientWidth, n = pool ? pool.chunks.length : 1;
    const w = Math.max(8, Math.min(28, Math.floor(width / Math.max(n, 1))));
    return 34 * Math.max(1, Math.min(10, Math.ceil(n / Math.max(1, Math.floor(width / w)))));
  }

  return {
    node,
    update(p) {
      pool = p;
      setText(title, "Pool " + p.name);
      const free = p.idle + p.pending, split = free ? 1 - p.largest_free / free : 0;
      const entries = [
        ["held", bytes(p.reserved)], ["in blocks", bytes(p.used) + " in " + many(p.blocks, "block")], ["pending", bytes(p.pending)], ["idle", bytes(p.idle)],
        ["free in slabs", bytes(p.in_slabs)], ["longest free run", bytes(p.largest_free)], ["free memory in pieces", percent(Math.max(0, split), 1)], ["waits", count(p.waits)],
      ];
      keyed(facts, entries, e => e[0], e => el("div", {}, el("dt", {}, e[0]), el("dd")), (e, [, value]) => setText(e.lastChild, value));
      grid.node.setAttribute("aria-label", many(p.chunks.length, "chunk") + " of pool " + p.name + ", arrow keys move");
      grid.draw();
      if (hint.textContent) setText(hint, cursor < layout.n ? chunkText(group(cursor)) : "");
      streams.fill(p.streams.map(s => [s.stream === "0x0" ? "default" : s.stream, bytes(s.pending), bytes(s.in_slabs)]), "Idle memory, " + bytes(p.idle) + ", is free for any stream.");
      const bySize = new Map();
      for (const s of p.streams) {
        for (const c of s.classes) {
          const sum = bySize.get(c.size) || {size: c.size, slabs: 0, blocks: 0, free: 0};
          sum.slabs += c.slabs;
          sum.blocks += c.blocks;
          sum.free += c.free;
          bySize.set(c.size, sum);
        }
      }
      const list = [...bySize.values()].sort((a, b) => a.size - b.size);
      classes.node.hidden = !list.length;
      classes.fill(list.map(c => [bytes(c.size), count(c.slabs), count(c.blocks), bytes(c.free), percent(c.blocks * c.size, c.blocks * c.size + c.free)]), "");
    },
  };
}

function pools() {
  const list = el("div"), node = el("section", {className: "panel"}, el("h3", {}, "Pools"), list);
  return {
    node,
    update(d) {
      node.hidden = d.pools.size === 0;
      const all = [...d.pools.values()].sort((a, b) => a.name < b.name ? -1 : 1);
      keyed(list, all, p => p.name, () => {
        const p = poolPanel();
        p.node.panel = p;
        return p.node;
      }, (child, p) => child.panel.update(p));
    },
  };
}
