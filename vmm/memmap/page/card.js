// The memory as a bar: by what it is for, or by who holds it. With a limit it is the limit's memory.

const holderColors = 7, mostHolders = 12;
let cards = 0;

// card shows the memory of one device. pick is called with the text of a holder that was chosen.
function card(pick) {
  let by = "part", device = null;
  const group = "by" + ++cards;
  const bar = el("div", {className: "bar", role: "img"});
  const list = el("ul", {className: "holders"});
  const extra = el("p", {className: "note"});
  const choose = value => el("label", {}, el("input", {
    type: "radio", name: group, value, checked: value === by,
    onchange: () => {
      by = value;
      update(device);
    },
  }), value === "part" ? "by use" : "by holder");
  const choices = [choose("part"), choose("holder")];
  const heading = el("h3");
  const node = el("section", {className: "panel"},
    el("div", {className: "head"}, heading, el("fieldset", {}, el("legend", {className: "hidden"}, "Divide the bar"), ...choices)),
    bar, list, extra);

  // summaryOf is of one moment with what the bar shows.
  const summaryOf = d => by === "part" ? d.summary : d.whole;

  function segments(d) {
    const x = summaryOf(d), h = holdings(x), out = [];
    const part = key => h[key] > 0 && out.push({key, name: parts[key][0], about: parts[key][1], color: key, bytes: h[key]});
    if (by === "part") {
      for (const key of ["used", "ahead", "unused", "chunks", "unmapped", "poolUsed", "poolFree", "cached", "retiring", "quarantined"]) part(key);
    } else {
      const all = holders(d);
      all.slice(0, mostHolders).forEach((x, i) => out.push({...x, color: "h" + i % holderColors}));
      const rest = all.slice(mostHolders);
      if (rest.length) out.push({key: "more", name: many(rest.length, "other holder"), about: "", color: "chunks", bytes: rest.reduce((n, x) => n + x.bytes, 0)});
      for (const key of ["cached", "retiring", "quarantined", "unmapped"]) part(key);
    }
    part("lent");
    if (x.stats.limit) {
      part("free");
      return out;
    }
    for (const p of x.processes) {
      out.push({key: "process " + p.pid, name: p.name || "process", about: "pid " + p.pid + ", another process", color: "process", bytes: p.bytes});
    }
    part("rest");
    part("free");
    return out;
  }

  function update(d) {
    device = d;
    const all = segments(d), sum = all.reduce((n, x) => n + x.bytes, 0);
    const summary = summaryOf(d), limit = summary.stats.limit, what = isHost(summary) ? "memory" : "card";
    const whole = Math.max(limit || summary.total, sum);
    setText(heading, limit ? "The limit of " + bytes(limit) : "The " + what);
    bar.setAttribute("aria-label", all.map(x => x.name + " " + bytes(x.bytes)).join(", "));
    keyed(bar, all, x => x.key, () => el("span"), (e, x) => {
      e.className = "segment " + x.color;
      e.style.flexGrow = x.bytes / whole;
      e.title = x.name + ": " + bytes(x.bytes) + ", " + percent(x.bytes, whole);
    });
    keyed(list, all, x => x.key, x => {
      const swatch = el("span", {className: "swatch"}), name = el("span", {className: "name"}), size = el("span", {className: "number"}), about = el("span", {className: "about"});
      const inner = [swatch, name, size, about];
      const body = x.made ? el("button", {type: "button", onclick: () => pick(x.made)}, ...inner) : el("span", {className: "holder"}, ...inner);
      const li = el("li", {}, body);
      Object.assign(li, {swatch, name, size, about});
      return li;
    }, (li, x) => {
      li.swatch.className = "swatch " + x.color;
      setText(li.name, x.name);
      setText(li.size, bytes(x.bytes) + " · " + percent(x.bytes, whole));
      li.size.title = exact(x.bytes);
      setText(li.about, x.about);
    });
    const s = summary.stats, also = [];
    if (s.asleep) also.push(bytes(s.asleep) + " of ranges sleep");
    if (s.host_copies) also.push(bytes(s.host_copies) + " of host memory for their contents");
    if (s.imported) also.push(bytes(s.imported) + " are imported, and their owners count them");
    if (s.pinned) also.push(bytes(s.pinned) + " of host memory is pinned");
    if (s.lease) also.push("of the lease of " + bytes(s.lease) + " from a budget, " + bytes(summary.created) + " are created");
    if (limit) {
      const others = summary.others, beyond = holdings(summary).beyond;
      also.push("of the " + what + " of " + bytes(summary.total) + ", others have " + bytes(others) + ", and " + bytes(beyond) + " are free beyond the limit (Device.SetLimit)");
    }
    if (summary.error) also.push("what is free is not known: " + summary.error);
    const text = also.join("; ");
    setText(extra, text && text[0].toUpperCase() + text.slice(1) + ".");
    extra.hidden = !text;
  }
  return {node, update};
}
