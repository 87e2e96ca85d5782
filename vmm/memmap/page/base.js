// Helpers of the whole page: elements, numbers as text, colors and themes.

const byID = id => document.getElementById(id);

// el makes an element. Properties that begin with "on" are listeners, those with a dash or "role"
// are attributes. Children that are no elements are text, so data cannot become markup.
function el(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props || {})) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k.includes("-") || k === "role" || k === "for") e.setAttribute(k, v);
    else e[k] = v;
  }
  e.append(...children);
  return e;
}

// setText changes a text only if it differs, so that a selection stays.
function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// keyed makes the children of a node those of a list: each item has a key, make makes a child,
// and update changes it. A child stays while its key does, and so does the focus in it.
function keyed(parent, items, key, make, update) {
  const old = parent.keyed || new Map(), now = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const k = key(item);
    let child = old.get(k);
    if (!child) child = make(item);
    now.set(k, child);
    old.delete(k);
    update(child, item);
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  for (const child of old.values()) child.remove();
  parent.keyed = now;
}

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

// bytes is a size with three digits or more: 5 MiB, 1.25 GiB.
function bytes(n) {
  let i = 0;
  while (n >= 1024 && i < units.length - 1) n /= 1024, i++;
  const digits = i === 0 || n >= 100 || Number.isInteger(n) ? 0 : n >= 10 ? 1 : 2;
  return n.toFixed(digits) + " " + units[i];
}

const exact = n => n.toLocaleString("en") + " bytes";
const count = n => n.toLocaleString("en");

// many is a number with its noun.
const many = (n, one, more) => count(n) + " " + (n === 1 ? one : more || one + "s");

function percent(part, whole) {
  const p = whole ? 100 * part / whole : 0;
  return (p > 0 && p < 0.1 ? "< 0.1" : p.toFixed(p < 10 ? 1 : 0)) + " %";
}

const pad = (n, digits = 2) => String(n).padStart(digits, "0");
const clock = t => pad(t.getHours()) + ":" + pad(t.getMinutes()) + ":" + pad(t.getSeconds());
const clockMs = t => clock(t) + "." + pad(t.getMilliseconds(), 3);
const day = t => t.getFullYear() + "-" + pad(t.getMonth() + 1) + "-" + pad(t.getDate());

// line is the last part of a file's name, and the line.
const line = made => made.slice(made.lastIndexOf("/") + 1);
// maker is the line that made a range, with the one that called it: many programs make all of theirs in one function.
const maker = r => r.stack && r.stack.length > 1 ? line(r.stack[0]) + " < " + line(r.stack[1]) : line(r.made);

// quoted is a name in which nothing hides: what does not show is there in hexadecimal.
const quoted = name => JSON.stringify(name).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, c => "\\u{" + c.codePointAt(0).toString(16) + "}");
// named is what a range is, with its name.
const named = r => (r.pool ? "pool " + r.pool : r.kind) + (r.name ? " " + quoted(r.name) : "");

// bytesCell is an element that shows a size, and the exact one to who points at it.
const bytesCell = (tag, n) => el(tag, {title: exact(n), className: "number"}, bytes(n));

// Colors are the variables of the style sheet, read once for a theme.
let colors = new Map();
function color(name) {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "#888");
  return colors.get(name);
}

// themeChanged draws what is drawn by a script: each has a redraw of its own.
function themeChanged() {
  colors = new Map();
  for (const e of document.querySelectorAll("canvas, .chart")) if (e.redraw) e.redraw();
}

function startTheme() {
  const select = byID("theme"), key = "memmap-theme";
  const set = value => {
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    themeChanged();
  };
  try { // a file or a private window may have no storage
    select.value = localStorage.getItem(key) || "";
  } catch { }
  set(select.value);
  select.addEventListener("change", () => {
    try {
      localStorage.setItem(key, select.value);
    } catch { }
    set(select.value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
}

// isHost tells memory of the host, which is no card.
const isHost = summary => summary.name.startsWith("host");
// beyondLen is what memory beyond Len is: there on purpose, or not used.
const beyondLen = summary => summary.stats.grow_aheads ? "ahead" : "unused";

// Parts of a device's memory: their names, in the order of the bar, and what they are.
const parts = {
  used: ["used", "below Len of ranges"],
  ahead: ["ahead", "mapped before it is needed: GrowAhead"],
  unused: ["unused", "mapped beyond Len of ranges"],
  chunks: ["other reservations", "mapped in them by the program"],
  unmapped: ["not mapped", "chunks without addresses of this device"],
  poolUsed: ["in pools", "blocks that are allocated"],
  poolFree: ["free in pools", "held by pools, in no block"],
  cached: ["cached", "kept for growth"],
  retiring: ["retiring", "given up; work that may use it runs"],
  quarantined: ["quarantined", "could not be undone or given back"],
  process: ["other process", ""],
  lent: ["lent", "free of the lease of a budget"],
  rest: ["unexplained", "the driver, other libraries and processes that are not known"],
  free: ["free", ""],
};
