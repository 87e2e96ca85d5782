// One range, near: its chunks on a bar that can be zoomed, their runs, and who maps it.

const mostRuns = 100;

function detail(close) {
  let range = null, from = 0, to = 1, fits = true;
  const title = el("h4"), facts = el("dl", {className: "facts"}), span = el("span", {className: "note"});
  const bar = surface("near", "", 48, (c, w, h) => range && paintRange(c, range, from, to, 0, 0, w, h));
  bar.node.tabIndex = 0;
  const runs = table("Chunks", ["Offset", "Chunks", "Each", "State"]);
  const sharers = table("Mapped by", ["Object", "Process", "User", "Maps", "Behind"]);
  const button = (text, label, f) => el("button", {type: "button", "aria-label": label, onclick: f}, text);
  const node = el("section", {className: "detail", hidden: true},
    el("div", {className: "head"}, title, el("div", {className: "tools", role: "group", "aria-label": "Zoom of the chunks"},
      button("◂", "Move left", () => move(-0.5)), button("▸", "Move right", () => move(0.5)),
      button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)),
      button("memory", "Show all memory", () => fit(false)), button("addresses", "Show all addresses", () => fit(true)),
      button("✕", "Close", close))),
    bar.node, span, facts, runs.node, sharers.node);
  bar.node.addEventListener("keydown", e => {
    const f = {ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), "+": () => zoom(0.5), "-": () => zoom(2), Home: () => fit(false)}[e.key];
    if (!f) return;
    e.preventDefault();
    f();
  });
  bar.node.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.shiftKey) return; // the page scrolls
    e.preventDefault();
    const box = bar.node.getBoundingClientRect();
    zoom(e.deltaY + e.deltaX > 0 ? 1.25 : 0.8, (e.clientX - box.left) / box.width);
  }, {passive: false});
  let drag = null;
  bar.node.addEventListener("pointerdown", e => {
    drag = {x: e.clientX, from};
    bar.node.setPointerCapture(e.pointerId);
  });
  bar.node.addEventListener("pointermove", e => drag && place(drag.from - (e.clientX - drag.x) / bar.node.clientWidth * (to - from), to - from));
  for (const end of ["pointerup", "pointercancel"]) bar.node.addEventListener(end, () => drag = null);

  function place(start, length) {
    fits = false;
    length = Math.max(Math.min(length, range.size), Math.min(range.size, 4096));
    from = Math.max(0, Math.min(start, range.size - length));
    to = from + length;
    paint();
  }

  const move = by => place(from + by * (to - from), to - from);
  const zoom = (by, at = 0.5) => place(from + (to - from) * at * (1 - by), (to - from) * by);

  function fit(addresses) {
    fits = !addresses;
    from = 0;
    to = addresses ? range.size : Math.max(1, Math.min(range.size, extentOf(range) * 1.02));
    paint();
  }

  function paint() {
    bar.draw();
    const text = "From " + bytes(from) + " to " + bytes(to) + " of " + bytes(range.size);
    setText(span, text + ". Drag to move; Ctrl or Shift with the wheel zooms; + − and arrow keys do both.");
    bar.node.setAttribute("aria-label", "Chunks of the range, " + text);
  }

  return {
    node,
    show(r) {
      node.hidden = !r;
      if (!r) {
        range = null;
        return;
      }
      const isNew = !range || range.addr !== r.addr;
      range = r;
      setText(title, named(r) + " at " + r.addr);
      if (isNew || fits) fit(false);
      else paint();
      const entries = [["made at", (r.stack || [r.made]).join(" < ")], ["since", day(new Date(r.since)) + " " + clockMs(new Date(r.since))], ["addresses", bytes(r.size)], ["mapped", bytes(r.committed)]];
      if (!isPlain(r)) entries.push(["length", bytes(r.len)], ["beyond it", bytes(r.ahead)]);
      entries.push(["retiring", bytes(r.retiring)], ["quarantined", bytes(r.quarantined)]);
      if (r.asleep) entries.push(["asleep", "its contents are in host memory"]);
      keyed(facts, entries, e => e[0], e => el("div", {}, el("dt", {}, e[0]), el("dd")), (e, [, value]) => setText(e.lastChild, value));
      const list = r.chunks.slice(0, mostRuns);
      runs.fill(list.map(x => [bytes(x.off), count(x.count), bytes(x.size), x.state]), r.chunks.length > mostRuns ? "The first " + mostRuns + " of " + count(r.chunks.length) + " runs." : "");
      sharers.node.hidden = !r.sharers;
      sharers.fill(sharerRows(r.sharers || []), "");
    },
  };
}

const sharerRows = all => all.map(s => [
  s.object || "–", [s.instance, s.pid ? "pid " + s.pid : "", s.note].filter(Boolean).join(", ") || "not known",
  s.uid < 0 ? "–" : String(s.uid), bytes(s.bytes), s.behind ? bytes(s.behind) : "–",
]);

// table is a table that scrolls sideways by itself, with a line below. One below a heading of the same
// name shows no caption.
function table(caption, heads, isTitled) {
  const body = el("tbody"), note = el("p", {className: "note", hidden: true});
  const node = el("div", {className: "tablebox"},
    el("div", {className: "scroll", role: "region", "aria-label": caption, tabIndex: 0},
      el("table", {}, el("caption", {className: isTitled ? "hidden" : ""}, caption), el("thead", {}, el("tr", {}, ...heads.map(h => el("th", {scope: "col"}, h)))), body)), note);
  return {
    node,
    fill(rows, text) {
      while (body.rows.length > rows.length) body.lastChild.remove();
      rows.forEach((cells, i) => {
        const row = body.rows[i] || body.appendChild(el("tr", {}, ...cells.map(() => el("td"))));
        cells.forEach((text, j) => setText(row.cells[j], text));
      });
      setText(note, text);
      note.hidden = !text;
    },
  };
}
