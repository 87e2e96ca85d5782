// Growth over time, drawn by uPlot.

const series = [
  ["taken", "taken, by all"], ["committed", "committed"], ["used", "used"], ["pools", "in pools"],
  ["cached", "cached"], ["retiring", "retiring"], ["asleep", "asleep"],
];

// spans are the seconds between marks of the time.
const spans = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];

// growth is the chart of one device. isLive says that time goes on while nothing changes.
function growth(isLive) {
  let chart = null, device = null, shown = "all", zoomed = null;
  const place = el("div", {className: "chart"});
  const buttons = [["60", "1 min"], ["600", "10 min"], ["all", "all"]].map(([value, text]) =>
    el("button", {type: "button", value, "aria-pressed": value === shown, onclick: () => show(value)}, text));
  const node = el("section", {className: "panel"},
    el("div", {className: "head"}, el("h3", {}, "Growth over time"),
      el("div", {className: "tools", role: "group", "aria-label": "Span of time"}, ...buttons,
        el("button", {type: "button", "aria-label": "Zoom in", onclick: () => zoom(0.5)}, "+"),
        el("button", {type: "button", "aria-label": "Zoom out", onclick: () => zoom(2)}, "−"))),
    place, el("p", {className: "note"}, "Drag across the chart to zoom in; double-click shows all."));

  function show(value) {
    shown = value;
    zoomed = null;
    for (const b of buttons) b.setAttribute("aria-pressed", b.value === value);
    update(device);
  }

  function zoom(by) {
    const [min, max] = span(), middle = (min + max) / 2, half = Math.max((max - min) / 2 * by, 0.25);
    zoomed = [middle - half, middle + half];
    for (const b of buttons) b.setAttribute("aria-pressed", false);
    update(device);
  }

  // rows are the columns for uPlot, with the last values once more at the end of the chart: there
  // is a row only when something changed.
  function rows() {
    const s = device.samples, e = device.earlier;
    const data = [e.time_ms.concat(s.time_ms).map(t => t / 1000),
      ...series.map(([key]) => (e[key] || e.time_ms.map(() => null)).concat(s[key]))];
    const n = data[0].length;
    const end = isLive() ? Math.max(Date.now(), model.time) / 1000 : model.time / 1000;
    if (n && end > data[0][n - 1]) data.forEach((column, i) => column.push(i ? column[n - 1] : end));
    return data;
  }

  function span() {
    const t = device.earlier.time_ms.concat(device.samples.time_ms.slice(0, 1)), last = isLive() ? Math.max(Date.now(), model.time) / 1000 : model.time / 1000;
    const first = t.length ? t[0] / 1000 : last;
    if (zoomed) return zoomed;
    if (shown === "all") return [Math.min(first, last - 1), last];
    return [last - Number(shown), last];
  }

  function make(data) {
    const axis = () => color("ink-soft"), grid = {stroke: () => color("line"), width: 1};
    const narrow = place.clientWidth < 500;
    chart = new uPlot({
      width: Math.max(place.clientWidth, 200), height: narrow ? 200 : 240, padding: [8, 12, 0, 0],
      cursor: {drag: {x: true, y: false}}, legend: {live: true},
      scales: {x: {time: true}, y: {range: (u, min, max) => [0, Math.max(max * 1.05, 1)]}},
      axes: [
        {stroke: axis, grid, ticks: grid, values: (u, splits) => splits.map(t => clock(new Date(t * 1000))), space: 80, incrs: spans},
        {stroke: axis, grid, ticks: grid, size: 66, incrs: Array.from({length: 56}, (_, i) => 2 ** i), values: (u, splits) => splits.map(bytes)},
      ],
      series: [{label: "time", value: (u, t) => t == null ? "–" : clockMs(new Date(t * 1000))}, ...series.map(([key, label]) => ({
        label, stroke: () => color(key === "pools" ? "poolUsed" : key), width: key === "committed" ? 2.5 : 1.5,
        dash: key === "taken" ? [6, 4] : undefined, paths: uPlot.paths.stepped({align: 1}), points: {show: false},
        value: (u, n) => n == null ? "–" : bytes(n),
      }))],
      hooks: {
        setSelect: [u => {
          if (u.select.width < 3) return;
          zoomed = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          for (const b of buttons) b.setAttribute("aria-pressed", false);
        }],
      },
    }, data, place);
    chart.over.addEventListener("dblclick", () => show("all"));
    chart.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
      const head = row.querySelector("th");
      if (!i || !head) return;
      head.tabIndex = 0;
      head.setAttribute("role", "button");
      head.setAttribute("aria-pressed", true);
      head.addEventListener("keydown", e => {
        if (e.key !== "Enter" && e.key !== " ") return;
        e.preventDefault();
        head.click();
      });
      head.addEventListener("click", () => queueMicrotask(() => head.setAttribute("aria-pressed", chart.series[i].show)));
    });
    new ResizeObserver(() => chart.setSize({width: Math.max(place.clientWidth, 200), height: place.clientWidth < 500 ? 200 : 240})).observe(place);
    place.redraw = () => {
      chart.root.querySelectorAll(".u-legend .u-marker").forEach((marker, i) => { // uPlot colors them once
        const s = chart.series[i];
        if (s && s.stroke) marker.style.borderColor = s.stroke(chart, i);
      });
      chart.redraw(false);
    };
  }

  function update(d) {
    device = d;
    const data = rows();
    if (!chart) {
      if (!place.clientWidth) return;
      make(data);
    }
    const [min, max] = span();
    chart.batch(() => {
      chart.setData(data, false);
      chart.setScale("x", {min, max});
    });
    if (chart.cursor.left == null || chart.cursor.left < 0) chart.setLegend({idx: data[0].length - 1}); // the newest, while nobody points
    const s = d.summary.stats;
    place.setAttribute("aria-label", "Committed " + bytes(s.committed) + ", at its peak " + bytes(s.peak_committed) + "; used " + bytes(s.used) + ", at its peak " + bytes(s.peak_used));
  }
  place.setAttribute("role", "group");
  return {node, update};
}
