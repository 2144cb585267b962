// Five charts with axes and units, drawn by uPlot: is it getting even, how good is it, what runs, does it hurt the
// application, how much is copied. Each has a sentence that says the same.
import { byId, bytes, duration, element, number } from "./dom.js";
import { css, darkMode, nameColour } from "./scales.js";

const NAMES = ["bytes", "writes/s", "reads/s", "tablets"];
const FIELDS = ["bytes", "write_rate", "read_rate", "tablets"];
const BAND = 0.05;
const MOST_NAMED = 8;

const axis = (format, size = 58) => ({
  stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1, size: 4 }, size, font: "11px system-ui, sans-serif",
  values: format && ((_, values) => values.map((value) => (value === null ? "" : format(value)))),
});
// Ticks of bytes at whole units, which are powers of 1024.
const SIZES = [0, 1, 2, 3, 4].flatMap((power) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((step) => step * 1024 ** power));
const sizes = () => ({ ...axis(bytes), incrs: SIZES });
const hour = (seconds) => { const at = new Date(seconds * 1000); return `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`; };
const exact = (seconds) => `${hour(seconds)}:${String(Math.floor(seconds) % 60).padStart(2, "0")}`;
const inTime = (_, values) => values.map(values.length > 1 && values[1] - values[0] < 60 ? exact : hour);
const time = () => ({ ...axis(null, 28), values: inTime, space: 70 });
const mean = (values) => values.reduce((sum, one) => sum + one, 0) / (values.length || 1);

export function createCharts() {
  const state = { series: null, score: null, at: null, charts: [] };

  function draw() {
    const { series } = state;
    const grid = byId("chart-grid");
    state.charts.forEach((chart) => chart.destroy());
    state.charts = [];
    if (!series || series.times.length < 2 || !window.uPlot) {
      grid.replaceChildren(element("p", { class: "quiet" }, "A chart needs two moments: the next tick brings the second."));
      return;
    }
    const figures = [loadChart(series, Number(byId("load").value)), scoreChart(series, state.score), runningChart(series), pauseChart(series), movedChart(series)];
    grid.replaceChildren(...figures.map((figure) => figure.box));
    for (const { box, options, data } of figures) {
      if (!options) continue;
      const place = box.querySelector(".plot");
      const common = { width: Math.max(200, place.clientWidth), height: 160, legend: { show: false }, cursor: { drag: { x: false, y: false } } };
      const chart = new window.uPlot({ ...common, ...options }, data, place);
      chart.root.setAttribute("aria-hidden", "true");
      state.charts.push(chart);
    }
    byId("kept").textContent = `${series.kept}.`;
  }

  function figure(title, says, legend = []) {
    return element("figure", {}, element("figcaption", {}, element("b", {}, title), " ", element("span", { class: "quiet" }, says)), element("div", { class: "plot" }), element("p", { class: "legend" }, ...legend));
  }

  function loadChart(series, dimension) {
    const nodes = new Map(series.nodes.map((node) => [node.id, node]));
    const names = [...nodes.keys()];
    const off = new Map(series.nodes.map((node) => [node.id, new Set(node.uncounted)]));
    const value = (name, at) => nodes.get(name)?.[FIELDS[dimension]][at] ?? null;
    const fair = series.times.map((_, at) => mean(names.filter((name) => !off.get(name).has(at) && value(name, at) !== null).map((name) => value(name, at))));
    const last = series.times.length - 1;
    const busiest = [...names].sort((a, b) => (value(b, last) ?? 0) - (value(a, last) ?? 0));
    const named = names.length <= MOST_NAMED ? names : busiest.slice(0, 3);
    const colour = (name) => (named.includes(name) ? nameColour(named.indexOf(name)) : css("--line"));
    const format = dimension === 0 ? bytes : number;
    const swatch = (name) => { const made = element("i", { class: "swatch" }); made.style.background = colour(name); return element("span", {}, made, name); };
    const says = `band: fair share ± 5 %; ${busiest[0] ?? "no node"} has most, ${format(value(busiest[0], last) ?? 0)} beside ${format(fair[last])}`;
    return {
      box: figure(`${NAMES[dimension]} per node`, says, [...named.map(swatch), names.length > named.length ? `grey: ${names.length - named.length} more` : ""]),
      data: [series.times, fair.map((one) => one * (1 + BAND)), fair.map((one) => one * (1 - BAND)), ...names.map((name) => series.times.map((_, at) => value(name, at)))],
      options: {
        hooks: { draw: [marker] }, scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } }, axes: [time(), dimension === 0 ? sizes() : axis(format)],
        bands: [{ series: [1, 2], fill: css("--band") }],
        series: [{}, { stroke: css("--green"), width: 0.5, points: { show: false } }, { stroke: css("--green"), width: 0.5, points: { show: false } }, ...names.map((name) => ({ stroke: colour(name), width: named.includes(name) ? 2 : 1, points: { show: false } }))],
      },
    };
  }

  function scoreChart(series, score) {
    const last = series.scores.findLast((one) => one !== null);
    const says = score ? `now ${score.now.toFixed(0)}, after this plan ${score.after_plan.toFixed(0)}, best ${score.limit.toFixed(0)} of 100` : `now ${last ?? "unknown"}`;
    return {
      box: figure("Balance", says),
      data: [series.times, series.scores, series.times.map(() => score?.limit ?? null)],
      options: { hooks: { draw: [marker] }, scales: { y: { range: [0, 105] } }, axes: [time(), axis(number, 36)],
        series: [{}, { stroke: css("--blue"), width: 2, points: { show: false } }, { stroke: css("--green"), dash: [5, 5], width: 1, points: { show: false } }] },
    };
  }

  function runningChart(series) {
    const most = Math.max(...series.running);
    return {
      box: figure("Running migrations", `now ${series.running[series.running.length - 1]}, at most ${most}`),
      data: [series.times, series.running],
      options: { hooks: { draw: [marker] }, scales: { y: { range: [0, Math.max(2, most + 1)] } }, axes: [time(), { ...axis(number, 30), incrs: [1, 2, 5, 10, 20, 50] }],
        series: [{}, { stroke: css("--blue"), fill: css("--band-blue"), width: 2, paths: window.uPlot.paths.stepped({ align: 1 }), points: { show: false } }] },
    };
  }

  function pauseChart(series) {
    const budget = series.pause_budget_seconds * 1000;
    const pauses = series.pause_seconds.map((one) => one * 1000).sort((a, b) => a - b);
    if (!pauses.length) return { box: figure("Write pauses", `none yet; the budget is ${number(budget)} ms`) };
    const at = (part) => pauses[Math.min(pauses.length - 1, Math.floor(part * pauses.length))];
    const step = Math.max(budget, pauses[pauses.length - 1]) / 25;
    const counts = Array.from({ length: Math.ceil(Math.max(budget, pauses[pauses.length - 1]) / step) + 1 }, () => 0);
    pauses.forEach((one) => { counts[Math.floor(one / step)] += 1; });
    return {
      box: figure("Write pauses", `ms, of ${pauses.length} switches: p50 ${duration(at(0.5) / 1000)}, p99 ${duration(at(0.99) / 1000)}, budget ${number(budget)} ms`),
      data: [counts.map((_, place) => (place + 0.5) * step), counts],
      options: { scales: { x: { time: false, range: [0, counts.length * step] }, y: { range: (_, low, high) => [0, Math.max(2, high * 1.1)] } },
        axes: [{ ...axis((value) => `${number(value)} ms`, 28), space: 70 }, { ...axis(number, 30), incrs: [1, 2, 5, 10, 20, 50, 100] }], hooks: { draw: [(chart) => line(chart, budget, css("--red"), "budget")] },
        series: [{}, { stroke: css("--blue"), fill: css("--blue"), paths: window.uPlot.paths.bars({ size: [0.85] }), points: { show: false } }] },
    };
  }

  function movedChart(series) {
    const [first, last] = [series.times[0], series.times[series.times.length - 1]];
    const step = last - first > 7200 ? 3600 : 300;
    const start = Math.floor(first / step) * step;
    const sums = Array.from({ length: Math.floor((last - start) / step) + 1 }, () => 0);
    series.moved.forEach((one) => { const place = Math.floor((one.at - start) / step); if (sums[place] !== undefined) sums[place] += one.bytes; });
    const total = sums.reduce((sum, one) => sum + one, 0);
    return {
      box: figure(`Bytes moved per ${step === 300 ? "five minutes" : "hour"}`, `${bytes(total)} in all`),
      data: [sums.map((_, place) => start + (place + 0.5) * step), sums],
      options: { scales: { x: { range: [start, start + sums.length * step] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } }, axes: [time(), sizes()],
        series: [{}, { stroke: css("--blue"), fill: css("--blue"), paths: window.uPlot.paths.bars({ size: [0.85] }), points: { show: false } }] },
    };
  }

  function line(chart, x, colour, text) {
    const place = chart.valToPos(x, "x", true);
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.setLineDash([6, 5]);
    ctx.strokeStyle = colour;
    ctx.lineWidth = 2;
    ctx.beginPath();
    ctx.moveTo(place, bbox.top);
    ctx.lineTo(place, bbox.top + bbox.height);
    ctx.stroke();
    if (text) {
      ctx.fillStyle = css("--quiet");
      ctx.textAlign = "right";
      ctx.fillText(text, place - 6, bbox.top + 12);
    }
    ctx.restore();
  }

  const marker = (chart) => state.at !== null && line(chart, state.at, css("--text"), "");

  byId("load").addEventListener("change", draw);
  darkMode.addEventListener("change", draw);
  let width = 0;
  new ResizeObserver(([entry]) => { if (Math.abs(entry.contentRect.width - width) > 4) { width = entry.contentRect.width; draw(); } }).observe(byId("chart-grid"));
  return {
    update(series, score, at) {
      Object.assign(state, { series, score, at });
      draw();
    },
  };
}
