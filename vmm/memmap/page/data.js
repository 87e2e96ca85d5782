// The data, and how they come: from the file itself, or as events of the program.

const model = {seq: 0, time: 0, rangesTime: 0, title: "", devices: [], sharers: []};

const byAddr = list => new Map(list.map(r => [r.addr, r]));
const byName = list => new Map(list.map(p => [p.name, p]));
const mostShownEvents = 256, mostRows = 8000;

// load takes a whole snapshot.
function load(s) {
  model.seq = s.seq;
  model.time = Date.parse(s.time);
  model.title = s.title;
  model.rangesTime = Date.parse(s.ranges_time);
  model.sharers = s.sharers;
  model.devices = s.devices.map(d => {
    const {ranges, pools, events, samples, earlier, ...summary} = d;
    return {summary, whole: summary, ranges: byAddr(ranges), pools: byName(pools), events, samples, earlier, version: 0, rangesVersion: 0};
  });
}

// apply takes a change; false if it does not follow what is here.
function apply(c) {
  if (c.before !== model.seq) return false;
  model.seq = c.seq;
  model.time = Date.parse(c.time);
  model.rangesTime = Date.parse(c.ranges_time);
  if (c.sharers) model.sharers = c.sharers;
  for (const x of c.devices) {
    const d = model.devices[x.index];
    if (x.summary) d.summary = x.summary;
    for (const a of x.gone || []) d.ranges.delete(a);
    for (const r of x.ranges || []) d.ranges.set(r.addr, r);
    for (const n of x.closed || []) d.pools.delete(n);
    for (const p of x.pools || []) d.pools.set(p.name, p);
    if (x.events) d.events = d.events.concat(x.events).slice(-mostShownEvents);
    if (x.samples) addSamples(d.samples, x.samples);
    if (x.gone || x.ranges) d.rangesVersion++;
    d.version++;
  }
  if (c.time === c.ranges_time) for (const d of model.devices) d.whole = d.summary;
  return true;
}

function addSamples(to, rows) {
  for (const column of Object.keys(to)) {
    for (const v of rows[column]) to[column].push(v);
    if (to[column].length > mostRows) { // every other one of the older half goes
      const half = to[column].length / 2;
      to[column] = to[column].filter((_, i) => i >= half || i % 2 === 0);
    }
  }
}

// connect follows the program. changed is called after each event, state when the connection
// comes or goes.
function connect(changed, state) {
  let events, again;
  const open = () => {
    clearTimeout(again);
    events = new EventSource("events");
    events.addEventListener("open", () => state("live"));
    events.addEventListener("error", () => {
      state("lost");
      if (events.readyState === EventSource.CLOSED) again = setTimeout(open, 3000); // it does not try again itself
    });
    events.addEventListener("snapshot", e => {
      load(JSON.parse(e.data));
      changed(true);
    });
    events.addEventListener("change", e => {
      if (apply(JSON.parse(e.data))) {
        changed(false);
      } else {
        events.close();
        open();
      }
    });
  };
  open();
  return {
    pause: () => {
      clearTimeout(again);
      events.close();
    },
    resume: open,
  };
}

// holdings divides a device's memory into the parts of the bar, in bytes, by a summary: the last one, or
// d.whole, which is of the moment at which the ranges were read.
function holdings(x) {
  const s = x.stats, out = {};
  out.used = s.used;
  out[beyondLen(x)] = x.unused;
  out.chunks = x.mapped;
  out.unmapped = x.unmapped;
  out.poolUsed = x.in_pools.used;
  out.poolFree = Math.max(0, x.in_pools.reserved - x.in_pools.used);
  out.cached = s.cached;
  out.retiring = s.retiring;
  out.quarantined = s.quarantined;
  out.rest = Math.max(0, x.others - x.processes.reduce((n, p) => n + p.bytes, 0));
  const within = s.limit ? Math.max(0, s.limit - s.committed) : Infinity;
  const free = Math.min(x.free, within);
  out.lent = Math.min(free, Math.max(0, s.lease - x.created));
  out.free = free - out.lent;
  out.beyond = x.free - free;
  return out;
}

// holders is who holds the program's own memory: lines of the program by the memory of what they
// made, and pools.
function holders(d) {
  const made = new Map();
  for (const r of d.ranges.values()) {
    const held = r.committed - r.imported - r.retiring - r.quarantined;
    if (r.pool || held <= 0) continue;
    const key = (r.stack || [r.made]).slice(0, 2).join(" < ");
    const h = made.get(key) || {key: "made " + key, made: maker(r), name: maker(r), about: (r.stack || [r.made]).join(" < "), bytes: 0, things: 0};
    h.bytes += held;
    h.things++;
    made.set(key, h);
  }
  const all = [...made.values()];
  for (const h of all) h.about += ", " + many(h.things, "range or reservation", "ranges and reservations");
  for (const p of d.pools.values()) {
    if (p.reserved > 0) all.push({key: "pool " + p.name, name: "pool " + p.name, about: many(p.blocks, "block"), bytes: p.reserved});
  }
  return all.sort((a, b) => b.bytes - a.bytes || (a.key < b.key ? -1 : 1));
}
