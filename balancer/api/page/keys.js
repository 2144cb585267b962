// The key space over time: time to the right, keys upwards, one texture pixel per cell, scaled by the browser. Zoomed
// and panned by buttons, keys and dragging.
import { byId, bytes, clock, element, number } from "./dom.js";
import { css, darkMode, gradient, nameColour, nameParts, ramp } from "./scales.js";

const ALL = { t: 0, tw: 1, k: 0, kw: 1 };
const FEWEST_PIXELS = 6;

export function createKeys(askJson) {
  const state = { map: null, image: null, view: { ...ALL }, cursor: null, busy: false, again: false, migrations: [], at: null, drag: null };
  const canvas = byId("heat");

  async function load() {
    const [bundle, name] = JSON.parse(byId("table").value || "[]");
    if (!name) return;
    if (state.busy) {
      state.again = true;
      return;
    }
    state.busy = true;
    const dimension = byId("dimension").value;
    const query = new URLSearchParams({ bundle, table: name, dimension: dimension === "owner" ? "writes" : dimension, rows: "240", day: String(byId("span").value === "day") });
    try {
      state.map = unpack(await askJson(`/v1/heatmap?${query}`));
      state.image = texture(state.map, dimension === "owner");
      draw();
    } catch (error) {
      byId("legend").textContent = `nothing is recorded of this table yet (${error.message})`;
    }
    state.busy = false;
    if (state.again) {
      state.again = false;
      load();
    }
  }

  function draw() {
    const { map, view, image } = state;
    if (!map || !canvas.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.imageSmoothingEnabled = false;
    // Keys grow upwards, pictures downwards.
    context.drawImage(image, view.t * image.width, (1 - view.k - view.kw) * image.height, view.tw * image.width, view.kw * image.height, 0, 0, width, height);
    drawBorders(context, width, height);
    drawMarks(context, width, height);
    drawMoment(context, width, height);
    drawAxes();
    drawLegend();
    point(state.cursor, false);
    canvas.setAttribute("aria-label", `Key space of ${map.table}: ${map.bins.length} stretches of keys, ${map.times.length} moments`);
  }

  const xOf = (part, width) => ((part - state.view.t) / state.view.tw) * width;
  const yOf = (part, height) => (1 - (part - state.view.k) / state.view.kw) * height;

  function timePart(at) {
    const { times } = state.map;
    const step = times.length > 1 ? (times[times.length - 1] - times[0]) / (times.length - 1) : 1;
    return (at - times[0] + step / 2) / (step * times.length);
  }

  function drawBorders(context, width, height) {
    const count = state.map.bins.length;
    if (height / (count * state.view.kw) < FEWEST_PIXELS) return;
    context.fillStyle = css("--border-line");
    for (let bin = 1; bin < count; bin += 1) context.fillRect(0, Math.round(yOf(bin / count, height)), width, 1);
  }

  function drawMarks(context, width, height) {
    const places = new Map();
    state.map.bins.forEach((bin, at) => { places.set(bin.first, at); places.set(bin.busiest, at); });
    context.font = "12px system-ui, sans-serif";
    for (const one of state.migrations) {
      const bin = [...one.targets, ...one.sources].map((id) => places.get(id)).find((found) => found !== undefined);
      const x = xOf(timePart(one.updated), width);
      if (one.table !== state.map.table || bin === undefined || x < 0 || x > width) continue;
      const y = Math.max(12, Math.min(height - 4, yOf((bin + 0.5) / state.map.bins.length, height)));
      const text = `${one.operation === "move" ? "●" : "▲"} ${one.operation === "move" ? `to ${one.target_node}` : one.operation}`;
      const shown = state.migrations.length <= 12 ? text : text[0];
      context.textAlign = x > width - 90 ? "right" : "left";
      context.lineWidth = 3;
      context.strokeStyle = css("--back");
      context.strokeText(shown, x, y + 4);
      context.fillStyle = css("--text");
      context.fillText(shown, x, y + 4);
    }
  }

  function drawMoment(context, width, height) {
    if (state.at === null) return;
    context.fillStyle = css("--text");
    context.fillRect(Math.round(xOf(timePart(state.at), width)), 0, 2, height);
  }

  function drawAxes() {
    const { map, view } = state;
    const keys = [0, 0.25, 0.5, 0.75, 1].map((part) => {
      const place = (view.k + view.kw * part) * map.bins.length;
      const bin = map.bins[Math.min(map.bins.length - 1, Math.floor(place))];
      const text = part === 1 && place >= map.bins.length ? map.bins[map.bins.length - 1].upper || "highest" : bin.lower || "lowest";
      const label = element("span", { title: text }, text);
      label.style.bottom = `${part * 100}%`;
      return label;
    });
    byId("heat-keys").replaceChildren(...keys);
    const first = map.times[0];
    const last = map.times[map.times.length - 1];
    const few = canvas.clientWidth < 500 ? 2 : 5;
    byId("heat-times").replaceChildren(...Array.from({ length: few + 1 }, (_, tick) => {
      const at = first + (view.t + (view.tw * tick) / few) * (last - first);
      return element("span", {}, tick === few && view.t + view.tw > 0.999 ? `now ${clock(at)}` : clock(at));
    }));
  }

  function drawLegend() {
    const { map } = state;
    const dimension = byId("dimension").value;
    const box = byId("legend");
    if (dimension === "owner") {
      const present = new Set(map.owners);
      box.replaceChildren(...map.nodes.map((name, at) => [name, at]).filter(([, at]) => present.has(at)).slice(0, 8).map(([name, at]) => {
        const swatch = element("i", { class: "swatch" });
        swatch.style.background = nameColour(at);
        return element("span", {}, swatch, name);
      }), present.size > 8 ? `colours repeat for ${present.size} nodes` : "");
      return;
    }
    const most = dimension === "bytes" ? bytes(map.max) : `${number(map.max)} rows/s`;
    box.replaceChildren("0 ", gradient(), ` ${most} · ${map.bins.length} stretches`);
  }

  function point(cursor, told = true) {
    const { map, view } = state;
    const frame = byId("heat-cursor");
    frame.hidden = !map || !cursor;
    if (frame.hidden) return;
    cursor.bin = Math.min(Math.max(cursor.bin, 0), map.bins.length - 1);
    cursor.time = Math.min(Math.max(cursor.time, 0), map.times.length - 1);
    state.cursor = cursor;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const [w, h] = [width / (map.times.length * view.tw), height / (map.bins.length * view.kw)];
    const [left, top] = [xOf(cursor.time / map.times.length, width), yOf((cursor.bin + 1) / map.bins.length, height)];
    frame.hidden = left < -w || left > width || top < -h || top > height;
    Object.assign(frame.style, { left: `${canvas.offsetLeft + left}px`, top: `${top}px`, width: `${w}px`, height: `${h}px` });
    if (told) byId("heat-detail").textContent = describe(map, cursor);
  }

  function cellOf(event) {
    const box = canvas.getBoundingClientRect();
    const { view, map } = state;
    const time = view.t + ((event.clientX - box.left) / box.width) * view.tw;
    const key = view.k + (1 - (event.clientY - box.top) / box.height) * view.kw;
    return { time: Math.floor(time * map.times.length), bin: Math.floor(key * map.bins.length) };
  }

  function zoom(factor) {
    const { view } = state;
    const middle = { t: view.t + view.tw / 2, k: view.k + view.kw / 2 };
    if (state.cursor && factor < 1) Object.assign(middle, { t: (state.cursor.time + 0.5) / state.map.times.length, k: (state.cursor.bin + 0.5) / state.map.bins.length });
    view.tw = Math.min(1, Math.max(0.04, view.tw * factor));
    view.kw = Math.min(1, Math.max(0.02, view.kw * factor));
    pan(middle.t - view.tw / 2, middle.k - view.kw / 2);
  }

  function pan(t, k) {
    state.view.t = Math.min(1 - state.view.tw, Math.max(0, t));
    state.view.k = Math.min(1 - state.view.kw, Math.max(0, k));
    draw();
  }

  function fromKey(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], Home: [0, -1e6], End: [0, 1e6] }[event.key];
    if (!state.map) return;
    if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (!step) return;
    event.preventDefault();
    const from = state.cursor ?? { bin: 0, time: state.map.times.length - 1 };
    if (step) point({ bin: from.bin + step[1], time: from.time + step[0] });
  }

  canvas.addEventListener("pointerdown", (event) => {
    state.drag = { x: event.clientX, y: event.clientY, ...state.view };
    if (state.map) point(cellOf(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!state.map) return;
    if (!state.drag || state.view.tw === 1) return point(cellOf(event));
    return pan(state.drag.t - ((event.clientX - state.drag.x) / canvas.clientWidth) * state.view.tw, state.drag.k + ((event.clientY - state.drag.y) / canvas.clientHeight) * state.view.kw);
  });
  window.addEventListener("pointerup", () => { state.drag = null; });
  canvas.addEventListener("keydown", fromKey);
  byId("heat-in").addEventListener("click", () => state.map && zoom(0.5));
  byId("heat-out").addEventListener("click", () => state.map && zoom(2));
  byId("heat-all").addEventListener("click", () => { state.view = { ...ALL }; draw(); });
  for (const id of ["table", "dimension", "span"]) byId(id).addEventListener("change", () => { state.view = { ...ALL }; load(); });
  darkMode.addEventListener("change", () => { if (state.map) { state.image = texture(state.map, byId("dimension").value === "owner"); draw(); } });
  new ResizeObserver(draw).observe(canvas);

  return {
    load,
    update(tables, migrations, at) {
      drawTables(tables);
      Object.assign(state, { migrations, at });
      if (state.map) draw();
    },
  };
}

function drawTables(tables) {
  const select = byId("table");
  const wanted = tables.map((one) => JSON.stringify([one.bundle, one.name]));
  if (JSON.stringify([...select.options].map((option) => option.value)) === JSON.stringify(wanted)) return;
  const before = select.value;
  select.replaceChildren(...tables.map((one, at) => element("option", { value: wanted[at] }, one.name)));
  if (wanted.includes(before)) select.value = before;
}

function unpack(map) {
  const decode = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return { ...map, cells: decode(map.cells), owners: decode(map.owners) };
}

function texture(map, byOwner) {
  const [columns, rows] = [map.times.length, map.bins.length];
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const palette = byOwner ? Array.from({ length: 256 }, (_, owner) => nameParts(owner)) : ramp();
  const source = byOwner ? map.owners : map.cells;
  for (let time = 0; time < columns; time += 1) {
    for (let bin = 0; bin < rows; bin += 1) {
      const place = ((rows - 1 - bin) * columns + time) * 4;
      image.data.set(palette[source[time * rows + bin]], place);
      image.data[place + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function describe(map, cursor) {
  const bin = map.bins[cursor.bin];
  const cell = cursor.time * map.bins.length + cursor.bin;
  const value = Math.expm1((map.cells[cell] / 255) * Math.log1p(map.max));
  const shown = map.dimension === "bytes" ? bytes(value) : `${number(value)} rows/s ${map.dimension === "reads" ? "read" : "written"}`;
  const who = bin.tablets === 1 ? `tablet ${bin.first}` : `${bin.tablets} tablets from ${bin.first}, busiest ${bin.busiest}`;
  const owner = map.nodes[map.owners[cell]] ?? "another node";
  return (
    `${clock(map.times[cursor.time])}: ${shown} on ${owner}. Now: ${who}, keys ${bin.lower || "lowest"} … ${bin.upper || "highest"}, on ${bin.node}, ` +
    `${number(bin.write_rate)} writes/s, ${number(bin.read_rate)} reads/s, ${bytes(bin.bytes)}`
  );
}
