// The heat map: keys over time on a canvas, one texture pixel per cell, scaled by the browser.
import { bounds, byId, bytes, clock, element, fill, number, table } from "./dom.js";

const LIGHT = [[244, 246, 249], [253, 212, 158], [240, 120, 60], [170, 20, 40], [70, 0, 30]];
const DARK = [[24, 28, 34], [40, 60, 120], [150, 50, 130], [240, 120, 60], [255, 240, 160]];
const OWNERS = ["#4c8fd6", "#e0823d", "#4aa564", "#c2569b", "#8f7ae0", "#b6a12c", "#3fa9a5", "#d0605e", "#7a8794", "#a5713f"];

const dark = window.matchMedia("(prefers-color-scheme: dark)");

export function createHeat(askJson) {
  const state = { map: null, key: "", hot: [], cursor: null, busy: false, again: false };

  async function load() {
    const [bundle, name] = JSON.parse(byId("table").value || "[]");
    if (!name) return;
    if (state.busy) {
      state.again = true;
      return;
    }
    state.busy = true;
    const dimension = byId("dimension").value;
    const query = new URLSearchParams({ bundle, table: name, dimension: dimension === "owner" ? "writes" : dimension });
    try {
      state.map = unpack(await askJson(`/v1/heatmap?${query}`));
      draw();
    } catch {
      byId("legend").textContent = "nothing is recorded of this table yet";
    }
    state.busy = false;
    if (state.again) {
      state.again = false;
      load();
    }
  }

  function draw() {
    const { map } = state;
    if (!map) return;
    const canvas = byId("heat");
    paint(canvas, map, byId("dimension").value === "owner");
    byId("heat-first").textContent = map.bins[0].lower === "" ? "lowest key" : `from ${map.bins[0].lower}`;
    const last = map.bins[map.bins.length - 1];
    byId("heat-last").textContent = last.upper === "" ? "highest key" : `to ${last.upper}`;
    drawLegend(map);
    point(state.cursor);
  }

  function point(cursor) {
    const { map } = state;
    const frame = byId("heat-cursor");
    frame.hidden = !map || !cursor;
    if (frame.hidden) return;
    cursor.bin = Math.min(Math.max(cursor.bin, 0), map.bins.length - 1);
    cursor.row = Math.min(Math.max(cursor.row, 0), map.times.length - 1);
    state.cursor = cursor;
    const box = byId("heat").getBoundingClientRect();
    const [width, height] = [box.width / map.bins.length, box.height / map.times.length];
    Object.assign(frame.style, { left: `${cursor.bin * width}px`, top: `${cursor.row * height}px`, width: `${width}px`, height: `${height}px` });
    byId("heat-detail").textContent = describe(map, cursor);
  }

  function fromEvent(event) {
    if (!state.map) return;
    const box = byId("heat").getBoundingClientRect();
    const bin = Math.floor(((event.clientX - box.left) / box.width) * state.map.bins.length);
    const row = Math.floor(((event.clientY - box.top) / box.height) * state.map.times.length);
    point({ bin, row });
  }

  function fromKey(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e6, 0], End: [1e6, 0] }[event.key];
    if (!step || !state.map) return;
    event.preventDefault();
    const from = state.cursor ?? { bin: 0, row: 0 };
    point({ bin: from.bin + step[0], row: from.row + step[1] });
  }

  const canvas = byId("heat");
  canvas.addEventListener("pointermove", fromEvent);
  canvas.addEventListener("pointerdown", fromEvent);
  canvas.addEventListener("keydown", fromKey);
  byId("table").addEventListener("change", load);
  byId("dimension").addEventListener("change", load);
  dark.addEventListener("change", draw);
  window.addEventListener("resize", () => point(state.cursor));

  return {
    refresh(overview, bundle) {
      if (!overview) return;
      drawTables(overview.tables.filter((one) => !bundle || one.bundle === bundle));
      drawHot(overview.hot.filter((one) => !bundle || one.bundle === bundle));
      load();
    },
  };
}

function drawTables(tables) {
  const select = byId("table");
  const wanted = tables.map((one) => JSON.stringify([one.bundle, one.name]));
  if (JSON.stringify([...select.options].map((option) => option.value)) === JSON.stringify(wanted)) return;
  const before = select.value;
  const several = new Set(tables.map((one) => one.bundle)).size > 1;
  select.replaceChildren(
    ...tables.map((one, at) => element("option", { value: wanted[at] }, several ? `${one.bundle} / ${one.name}` : one.name)),
  );
  if (wanted.includes(before)) select.value = before;
}

function drawHot(hot) {
  if (!hot.length) return fill("hot", element("p", { class: "quiet" }, "All tablets are idle."));
  const rows = hot.map((one) => [`${one.id}`, one.table, one.node, bounds(one), one.write_rate, one.read_rate, bytes(one.bytes)]);
  return fill("hot", table(["Tablet", "Table", "Node", "Keys", "Writes/s", "Reads/s", "Size"], rows));
}

function unpack(map) {
  const decode = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  // The newest moment comes first, because it is drawn on top.
  return { ...map, times: [...map.times].reverse(), cells: decode(map.cells), owners: decode(map.owners) };
}

function at(map, cursor) {
  return (map.times.length - 1 - cursor.row) * map.bins.length + cursor.bin;
}

function paint(canvas, map, byOwner) {
  const [columns, rows] = [map.bins.length, map.times.length];
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const palette = byOwner ? ownerPalette() : ramp(dark.matches ? DARK : LIGHT);
  const source = byOwner ? map.owners : map.cells;
  for (let row = 0; row < rows; row += 1) {
    for (let bin = 0; bin < columns; bin += 1) {
      image.data.set(palette[source[at(map, { bin, row })]], (row * columns + bin) * 4);
    }
  }
  context.putImageData(image, 0, 0);
  canvas.setAttribute("aria-label", `Heat map of ${map.table}: ${columns} columns, ${rows} moments`);
}

function ramp(stops) {
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return [...stops[low].map((value, channel) => value + (stops[low + 1][channel] - value) * (place - low)), 255];
  });
}

function ownerPalette() {
  const parsed = OWNERS.map((text) => [1, 3, 5].map((from) => parseInt(text.slice(from, from + 2), 16)));
  return Array.from({ length: 256 }, (_, owner) => [...parsed[owner % parsed.length], 255]);
}

function drawLegend(map) {
  const dimension = byId("dimension").value;
  if (dimension === "owner") {
    const present = new Set(map.owners);
    const names = map.nodes.map((name, number) => [name, number]).filter(([, number]) => present.has(number)).slice(0, 12);
    fill("legend", ...names.map(([name, number]) => {
      const swatch = element("span", { class: "chip" }, name);
      swatch.style.color = OWNERS[number % OWNERS.length];
      return swatch;
    }));
    return;
  }
  const most = dimension === "bytes" ? bytes(map.max) : `${number(map.max)} rows/s`;
  byId("legend").textContent = `brightest: ${most}; ${map.bins.length} columns`;
}

function describe(map, cursor) {
  const bin = map.bins[cursor.bin];
  const cell = at(map, cursor);
  const value = Math.expm1((map.cells[cell] / 255) * Math.log1p(map.max));
  const shown = map.dimension === "bytes" ? bytes(value) : `${number(value)} rows/s ${map.dimension === "reads" ? "read" : "written"}`;
  const who = bin.tablets === 1 ? `tablet ${bin.first}` : `${bin.tablets} tablets from ${bin.first}, busiest ${bin.busiest}`;
  const keys = `${bin.lower || "lowest"} … ${bin.upper || "highest"}`;
  const owner = map.nodes[map.owners[cell]] ?? "another node";
  return (
    `${clock(map.times[cursor.row])}: ${shown} on ${owner}. Now: ${who}, keys ${keys}, on ${bin.node}, ` +
    `${number(bin.write_rate)} writes/s, ${number(bin.read_rate)} reads/s, ${bytes(bin.bytes)}`
  );
}
