// Canvases: making one that follows its width, and drawing chunks.

// surface is a canvas as wide as its place. paint(context, width, height) draws it. Its height may be a
// function, where it depends on the width.
function surface(className, label, height, paint) {
  const node = el("canvas", {className, role: "img", "aria-label": label});
  const draw = () => {
    const width = node.clientWidth;
    if (!width) return;
    const shown = typeof height === "function" ? height() : height;
    const scale = devicePixelRatio || 1;
    const w = Math.round(width * scale), h = Math.round(shown * scale);
    if (node.width !== w || node.height !== h) {
      node.width = w;
      node.height = h;
      node.style.height = shown + "px";
    }
    const c = node.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, shown);
    paint(c, width, shown);
  };
  node.style.height = (typeof height === "function" ? 1 : height) + "px";
  new ResizeObserver(draw).observe(node);
  node.redraw = draw;
  return {node, draw};
}

// stateColor is the color of a chunk: of the memory below Len, or beyond it.
function stateColor(state, isUsed) {
  switch (state) {
    case "accessible": return color(isUsed ? "used" : "ahead");
    case "retiring": case "unmapping": return color("retiring");
    case "quarantined": return color("quarantined");
  }
  return color("chunks"); // mapped, and not accessible yet
}

// extentOf is how far a range reaches that has memory, or contents while it sleeps.
function extentOf(r) {
  const last = r.chunks[r.chunks.length - 1];
  return Math.max(last ? last.off + last.size * last.count : 0, r.len);
}

// isPlain reports whether a range has no Len: a reservation, all of whose memory counts as other
// chunks, or as a pool's.
const isPlain = r => r.kind !== "range";

// paintRange draws the bytes [from, to) of a range into a bar of the canvas.
function paintRange(c, r, from, to, x, y, w, h) {
  const px = off => x + (off - from) / (to - from) * w;
  const fill = (a, b, style, top = y, height = h) => {
    a = Math.max(a, from);
    b = Math.min(b, to);
    if (b <= a) return;
    c.fillStyle = style;
    c.fillRect(px(a), top, Math.max(px(b) - px(a), 1), height);
  };
  fill(0, r.size, color("reserved"));
  if (r.asleep) {
    fill(0, r.len, color("asleep"));
    hatch(c, Math.max(px(0), x), y, Math.min(px(r.len), x + w) - Math.max(px(0), x), h);
  }
  for (const run of r.chunks) {
    const end = run.off + run.size * run.count;
    if (end <= from || run.off >= to) continue;
    if (run.state === "accessible" && isPlain(r)) {
      fill(run.off, end, color(r.pool ? "poolUsed" : "chunks"));
    } else {
      fill(run.off, Math.min(end, Math.max(r.len, run.off)), stateColor(run.state, true));
      fill(Math.max(run.off, Math.min(r.len, end)), end, stateColor(run.state, false));
    }
    const each = run.size / (to - from) * w;
    if (each >= 4) { // chunks can be told apart
      c.fillStyle = color("panel");
      const first = Math.max(0, Math.floor((from - run.off) / run.size));
      for (let i = first; i <= run.count && run.off + i * run.size <= to; i++) {
        const at = px(run.off + i * run.size);
        if (at > x + 0.5) c.fillRect(at - 0.5, y, 1, h);
      }
    }
  }
  if (r.sharers) { // what others map is underlined
    for (const s of r.sharers) fill(0, Math.max(1, Math.min(s.bytes, r.size)), color("shared"), y + h - 4, 4);
  }
}

// hatch draws stripes, so that sleep is not told by its color alone.
function hatch(c, x, y, w, h) {
  if (w < 3) return;
  c.save();
  c.beginPath();
  c.rect(x, y, w, h);
  c.clip();
  c.strokeStyle = color("panel");
  c.lineWidth = 1.5;
  c.globalAlpha = 0.6;
  c.beginPath();
  for (let at = x - h; at < x + w; at += 7) {
    c.moveTo(at, y + h);
    c.lineTo(at + h, y);
  }
  c.stroke();
  c.restore();
}

// legend is a list of colors and their names.
function legend(entries) {
  return el("ul", {className: "legend", "aria-label": "Colors"},
    ...entries.map(([name, text]) => el("li", {}, el("span", {className: "swatch " + name}), text)));
}
