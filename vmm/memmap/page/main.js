// The page: a section for each device, and what keeps it up to date.

const slow = 1500; // milliseconds
const embedded = byID("data").textContent.trim();
let connection = null, status = "", paused = false, views = [], waiting = false;

// eventsPanel shows the last events of a device, the newest first.
function eventsPanel() {
  const kind = el("select", {onchange: () => update(device)}, el("option", {value: ""}, "all"));
  const list = table("Last events, the newest first", ["Time", "Kind", "Name", "Address", "Size", "Stream", "Where"], true);
  const node = el("section", {className: "panel events"}, el("div", {className: "head"}, el("h3", {}, "Last events, the newest first"), el("label", {}, "Kind ", kind)), list.node);
  let device = null;
  function update(d) {
    device = d;
    const kinds = [...new Set(d.events.map(e => e.kind))].sort();
    const has = [...kind.options].slice(1).map(o => o.value);
    for (const k of kinds) if (!has.includes(k)) kind.append(el("option", {value: k}, k));
    const shown = d.events.filter(e => !kind.value || e.kind === kind.value).slice(-100).reverse();
    list.fill(shown.map(e => [clockMs(new Date(e.time)), e.kind, e.name ? quoted(e.name) : "–", e.addr === "0x0" ? "–" : e.addr, e.size ? bytes(e.size) : "–", e.stream === "0x0" ? "–" : e.stream, e.where ? line(e.where) : "–"]),
      d.events.length === 0 ? "None are kept. Device.SetHistory keeps them." : shown.length < d.events.length ? count(shown.length) + " of the last " + count(d.events.length) + "." : "");
    [...list.node.querySelectorAll("tbody tr")].forEach((row, i) => {
      const e = shown[i];
      row.title = e.stack ? e.stack.join("\n") : e.where || "";
    });
  }
  return {node, update};
}

// openPanel shows what is open in the device.
function openPanel() {
  const list = el("dl", {className: "facts"}), node = el("section", {className: "panel"}, el("h3", {}, "Open"), list);
  const counts = el("dl", {className: "facts"});
  node.append(el("h4", {}, "Done so far"), counts);
  const put = (to, entries) => keyed(to, entries, e => e[0], e => el("div", {}, el("dt", {}, e[0]), el("dd")), (e, [, n]) => setText(e.lastChild, count(n)));
  return {
    node,
    update(d) {
      const s = d.summary.stats;
      put(list, d.summary.open.map(o => [o.kind, o.count]));
      put(counts, [["growths", s.growths], ["ahead of need", s.grow_aheads], ["cached pieces taken", s.hits], ["created", s.creates], ["released", s.releases], ["mapped", s.maps], ["unmapped", s.unmaps]]);
    },
  };
}

function deviceView(d, index) {
  const heading = el("h2", {id: "device" + index}), sub = el("p", {className: "note"});
  const list = ranges(d.summary.name);
  const panels = [card(made => list.pick(made)), growth(() => !embedded && !paused), list, pools(), eventsPanel(), openPanel()];
  const node = el("section", {className: "device", "aria-labelledby": "device" + index}, heading, sub, ...panels.map(p => p.node));
  return {
    node, panels, chart: panels[1],
    update(d) {
      const x = d.summary;
      setText(heading, x.name + (x.model ? " · " + x.model : ""));
      setText(sub, x.total ? bytes(x.total - x.free) + " of " + bytes(x.total) + " are taken; this program has " + bytes(x.stats.committed) + ", at its peak " + bytes(x.stats.peak_committed) + (x.stats.limit ? ", of its limit of " + bytes(x.stats.limit) : "") : "");
      for (const p of panels) p.update(d);
    },
  };
}

function strayPanel() {
  const list = table("Mapped by other processes, at addresses that are in no range of these devices", ["Object", "Process", "User", "Maps", "Behind"]);
  const node = el("section", {className: "panel", hidden: true}, el("h3", {}, "Also shared"), list.node);
  return {
    node,
    update() {
      node.hidden = !model.sharers.length;
      list.fill(sharerRows(model.sharers), "");
    },
  };
}

function build() {
  const main = byID("main");
  main.replaceChildren();
  const stray = strayPanel();
  views = model.devices.map(deviceView);
  main.append(...views.map(v => v.node), stray.node);
  views.stray = stray;
}

function render() {
  waiting = false;
  model.devices.forEach((d, i) => views[i].update(d));
  views.stray.update();
  showStatus();
}

function changed(whole) {
  if (whole && views.length !== model.devices.length) build();
  if (whole) for (const d of model.devices) d.rangesVersion = model.seq + 0.5; // not one that was shown
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(render);
  }
}

function showStatus() {
  const at = new Date(model.time), e = byID("status");
  const slowed = model.time - model.rangesTime > slow ? " · ranges as of " + clock(new Date(model.rangesTime)) + ": there are many" : "";
  const texts = {live: "live · " + clock(at) + slowed, lost: "no connection, trying again", paused: "paused at " + clock(at), file: "taken " + day(at) + " " + clock(at), "": "connecting"};
  setText(e, texts[status]);
  e.className = "status " + status;
}

function start() {
  startTheme();
  const pause = byID("pause");
  if (embedded) {
    status = "file";
    pause.hidden = true;
    load(JSON.parse(embedded));
    build();
    render(); // at once: what prints a page, or saves it, may wait for no frame
    return;
  }
  showStatus();
  connection = connect(changed, s => {
    if (paused) return;
    status = s;
    showStatus();
  });
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", paused);
    setText(pause, paused ? "Go on" : "Pause");
    status = paused ? "paused" : "";
    if (paused) connection.pause();
    else connection.resume();
    showStatus();
  });
  setInterval(() => { // time goes on while nothing changes
    if (!paused && !document.hidden) model.devices.forEach((d, i) => views[i] && views[i].chart.update(d));
  }, 1000);
}

start();
