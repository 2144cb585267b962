// The cluster as a picture: a row for each node, a block for each tablet, drawn on one canvas. What changes its place
// glides there, unless less motion is asked for. Labels are buttons; the canvas is read by keyboard.
import { arrowsFor } from "./arrows.js";
import { byId, bytes, duration, element, keyed, number } from "./dom.js";
import { css, darkMode, gradient, lessMotion, level, nameColour, rampText } from "./scales.js";

const GLIDE = 700;
const MOST_GLIDING = 12000;

function sizesOf(count, narrow) {
  if (count <= 6) {
    const step = narrow ? 48 : Math.max(68, Math.min(104, 440 / count));
    return { height: Math.round(step * (narrow ? 0.7 : 0.6)), gap: Math.round(step * (narrow ? 0.3 : 0.4)) };
  }
  if (count <= 14) return { height: 38, gap: 8 }; // two lines of text
  return count <= 30 ? { height: 18, gap: 6 } : { height: 11, gap: 3 };
}

export function createCluster(open) {
  const state = { picture: null, nodes: new Map(), migrations: [], layout: null, before: null, began: 0, cursor: null, now: 0 };
  const canvas = byId("blocks");

  function update(picture, nodes, migrations, now) {
    state.before = state.picture?.bundle === picture.bundle ? state.layout : null;
    Object.assign(state, { picture, now, nodes: new Map(nodes.map((node) => [node.id, node])), migrations });
    lay();
    const glides = state.before && !lessMotion.matches && state.layout.count <= MOST_GLIDING && changed(state.before, state.layout);
    // One glide at a time: the frames of the last one go on with the new places.
    const gliding = state.began > 0;
    state.began = glides ? performance.now() : 0;
    if (!glides) state.before = null;
    prepare();
    if (!gliding || !glides) paint(performance.now());
  }

  function lay() {
    const stage = byId("stage");
    const width = stage.clientWidth;
    const rows = state.picture.nodes;
    const { height, gap } = sizesOf(rows.length, width < 420);
    const totals = rows.map((row) => row.bytes.reduce((sum, one) => sum + one, 0));
    const fair = Math.max(0, ...rows.map((row) => row.fair ?? 0));
    // A balanced cluster does not look full: the fair share is never beyond five eighths of the row.
    const most = Math.max(1, fair * 1.6, ...totals.map((total) => total * 1.05));
    const count = rows.reduce((sum, row) => sum + row.ids.length, 0);
    const made = { width, height, gap, step: height + gap, most, totals, count, total: rows.length * (height + gap),
      x: new Float32Array(count), w: new Float32Array(count), y: new Float32Array(count), places: new Map(), starts: [] };
    let at = 0;
    rows.forEach((row, place) => {
      made.starts.push(at);
      let x = 0;
      row.ids.forEach((id, block) => {
        const w = (row.bytes[block] / most) * width;
        made.x[at] = x;
        made.w[at] = w;
        made.y[at] = place * made.step;
        made.places.set(id, at);
        x += w;
        at += 1;
      });
    });
    made.starts.push(at);
    state.layout = made;
    canvas.style.height = `${made.total}px`;
    drawLabels();
    drawLegend();
    drawArrows();
    point(state.cursor, false);
    canvas.setAttribute("aria-label", `${state.picture.tablets} tablets on ${rows.length} nodes`);
  }

  // Everything that is the same in all frames of a glide is found out once: where each block comes from, its colour, and
  // an order in which each colour is set only once.
  function prepare() {
    const { layout, picture, before } = state;
    const by = byId("paint").value;
    const colours = rampText();
    const most = by === "reads" ? picture.most_reads : picture.most_writes;
    const from = new Int32Array(layout.count).fill(-1);
    const paints = new Map();
    picture.nodes.forEach((row, place) => {
      const values = by === "reads" ? row.reads : row.writes;
      const stale = state.nodes.get(row.id)?.reachable === false;
      row.ids.forEach((id, block) => {
        const at = layout.starts[place] + block;
        from[at] = before?.places.get(id) ?? -1;
        const colour = by === "table" ? nameColour(row.tables[block]) : colours[level(values[block] / row.tablets[block], most)];
        const key = `${stale ? 0.35 : 1} ${colour}`;
        if (!paints.has(key)) paints.set(key, []);
        paints.get(key).push(at);
      });
    });
    state.prepared = { from, paints, track: css("--track") };
  }

  function paint(time) {
    const { layout, picture } = state;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(layout.width * ratio), Math.round(layout.total * ratio)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, layout.width, layout.total);
    context.fillStyle = state.prepared.track;
    picture.nodes.forEach((_, row) => context.fillRect(0, row * layout.step, layout.width, layout.height));
    const part = state.began ? Math.max(0, Math.min(1, (time - state.began) / GLIDE)) : 1;
    paintBlocks(context, 1 - (1 - part) ** 3);
    if (part < 1) requestAnimationFrame(paint);
    else Object.assign(state, { began: 0, before: null });
  }

  function paintBlocks(context, part) {
    const { layout, before } = state;
    const { from, paints } = state.prepared;
    for (const [key, blocks] of paints) {
      const space = key.indexOf(" ");
      context.globalAlpha = Number(key.slice(0, space));
      context.fillStyle = key.slice(space + 1);
      for (const at of blocks) {
        let [x, y, w] = [layout.x[at], layout.y[at], layout.w[at]];
        const old = from[at];
        if (part < 1 && old >= 0) {
          x = before.x[old] + (x - before.x[old]) * part;
          y = before.y[old] + (y - before.y[old]) * part;
          w = before.w[old] + (w - before.w[old]) * part;
        } else if (part < 1) w *= part; // what is new, as after a split, grows
        context.fillRect(x, y, w > 3 ? w - 1 : Math.max(w, 0.4), layout.height);
      }
    }
    context.globalAlpha = 1;
  }

  function drawLabels() {
    const { layout, picture } = state;
    const tight = layout.height < 24;
    for (const name of ["labels", "figures"]) {
      byId(name).style.height = `${layout.total}px`;
      byId(name).classList.toggle("tight", tight);
    }
    const rows = picture.nodes.map((row, place) => ({ row, place, node: state.nodes.get(row.id) }));
    keyed("labels", rows, ({ row }) => row.id, ({ row }) => label(row.id), (made, one) => updateLabel(made, one, tight));
    keyed("figures", rows, ({ row }) => row.id, () => element("p", {}), (made, one) => updateFigures(made, one, tight));
  }

  function label(id) {
    return element("button", { type: "button", "data-node": id, title: id, onclick: () => open({ kind: "node", id }) },
      element("b", {}, id), element("span", { class: "about" }));
  }

  function updateLabel(made, { place, node }, tight) {
    made.style.top = `${place * state.layout.step}px`;
    made.style.height = `${state.layout.height}px`;
    const word = !node ? "" : node.reachable ? node.state : "down";
    made.className = !node || word === "active" ? "" : `odd ${word === "draining" ? "working" : word === "closed" ? "waiting" : "blocked"}`;
    const silent = node && !node.reachable && node.unreachable_since ? ` for ${duration(Math.max(0, state.now - node.unreachable_since))}` : "";
    const about = [node?.zone, word === "active" || !word ? diskShare(node) : `${word}${silent}`].filter(Boolean).join(" · ");
    const span = made.querySelector(".about");
    if (span.textContent !== about) span.textContent = about;
    made.classList.toggle("tight", tight);
  }

  function diskShare(node) {
    const capacity = node?.capacity.bytes;
    return capacity ? `${Math.round((100 * (node.loads.bytes ?? 0)) / capacity)} % of disk` : "";
  }

  function updateFigures(made, { row, place, node }, tight) {
    made.style.top = `${place * state.layout.step}px`;
    made.style.height = `${state.layout.height}px`;
    const rates = node ? `${number(Math.round(node.loads.write_rate ?? 0))} writes/s` : "";
    const off = row.fair ? Math.round(100 * (state.layout.totals[place] / row.fair - 1)) : null;
    const size = bytes(state.layout.totals[place]);
    const text = tight ? size : `${size}${off === null ? "" : ` · ${off > 0 ? "+" : off < 0 ? "−" : "±"}${Math.abs(off)} %`}`;
    const both = JSON.stringify([text, tight ? "" : rates]);
    if (made.dataset.text === both) return;
    made.dataset.text = both;
    made.replaceChildren(text, ...(tight ? [] : [element("br"), element("span", { class: "quiet" }, rates)]));
  }

  function drawLegend() {
    const by = byId("paint").value;
    const { picture } = state;
    const most = by === "reads" ? picture.most_reads : picture.most_writes;
    const key = JSON.stringify([by, most, picture.tables, darkMode.matches]);
    const box = byId("paint-legend");
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    if (by === "table") {
      box.replaceChildren(...picture.tables.slice(0, 8).map((name, at) => {
        const swatch = element("i", { class: "swatch" });
        swatch.style.background = nameColour(at);
        return element("span", {}, swatch, name);
      }));
    } else box.replaceChildren("0 ", gradient(), ` ${number(most)} ${by}/s`);
  }

  function drawArrows() {
    byId("arrows").replaceChildren(...arrowsFor(state.picture, state.layout, state.migrations, state.now));
    byId("arrows").setAttribute("viewBox", `0 0 ${state.layout.width} ${state.layout.total}`);
  }

  function point(cursor, told = true) {
    const frame = byId("block-cursor");
    const rows = state.picture?.nodes ?? [];
    const row = cursor && rows[cursor.row];
    frame.hidden = !row || !row.ids.length;
    state.cursor = frame.hidden ? null : cursor;
    if (frame.hidden) return;
    cursor.block = Math.max(0, Math.min(row.ids.length - 1, cursor.block));
    const at = state.layout.starts[cursor.row] + cursor.block;
    Object.assign(frame.style, { left: `${state.layout.x[at]}px`, top: `${state.layout.y[at]}px`, width: `${Math.max(3, state.layout.w[at])}px`, height: `${state.layout.height}px` });
    if (told) byId("block-detail").textContent = describe(row, cursor.block);
  }

  function describe(row, block) {
    const many = row.tablets[block] > 1 ? `${row.tablets[block]} tablets, the largest ${row.ids[block]},` : `tablet ${row.ids[block]}`;
    return `${many} of ${state.picture.tables[row.tables[block]]} on ${row.id}: ${bytes(row.bytes[block])}, ` +
      `${number(row.writes[block])} writes/s, ${number(row.reads[block])} reads/s`;
  }

  function found(event) {
    if (!state.layout) return null;
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = Math.floor(y / state.layout.step);
    if (row < 0 || row >= state.picture.nodes.length) return null;
    const [first, last] = [state.layout.starts[row], state.layout.starts[row + 1]];
    for (let at = first; at < last; at += 1) {
      if (x >= state.layout.x[at] && x < state.layout.x[at] + state.layout.w[at]) return { row, block: at - first };
    }
    return null;
  }

  function choose() {
    const { cursor, picture } = state;
    if (cursor) open({ kind: "tablet", id: picture.nodes[cursor.row].ids[cursor.block] });
  }

  function fromKey(event) {
    if (!state.picture) return;
    const from = state.cursor ?? { row: 0, block: 0 };
    const to = { ...from };
    if (event.key === "ArrowRight" && state.cursor) to.block += 1;
    else if (event.key === "ArrowLeft") to.block -= 1;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") to.row = nextRow(from.row, event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Home") to.block = 0;
    else if (event.key === "End") to.block = 1e9;
    else if (event.key === "Enter" || event.key === " ") choose();
    else if (event.key !== "ArrowRight") return;
    event.preventDefault();
    point(to);
  }

  function nextRow(from, step) {
    for (let row = from + step; row >= 0 && row < state.picture.nodes.length; row += step) {
      if (state.picture.nodes[row].ids.length) return row;
    }
    return from;
  }

  function again() {
    if (!state.picture || !byId("stage").clientWidth) return;
    Object.assign(state, { began: 0, before: null });
    lay();
    prepare();
    paint(performance.now());
  }

  canvas.addEventListener("pointermove", (event) => { const there = found(event); if (there) point(there); });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => { point(found(event)); choose(); });
  canvas.addEventListener("keydown", fromKey);
  byId("paint").addEventListener("change", again);
  darkMode.addEventListener("change", again);
  new ResizeObserver(again).observe(byId("stage"));
  return { update };
}

function changed(before, after) {
  if (before.width !== after.width || before.step !== after.step) return false;
  if (before.count !== after.count) return true;
  for (const [id, at] of after.places) {
    const from = before.places.get(id);
    if (from === undefined || Math.abs(before.x[from] - after.x[at]) > 1 || before.y[from] !== after.y[at]) return true;
  }
  return false;
}
