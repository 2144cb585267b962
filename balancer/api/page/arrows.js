// What runs, over the blocks: moves as arrows with their progress, splits and merges as marks on what they cut or join.
import { svg } from "./dom.js";

const MOST_TOLD = 12;
const [WORDS_WIDE, WORDS_HIGH] = [84, 15];

export function arrowsFor(picture, layout, migrations) {
  const rows = new Map(picture.nodes.map((row, place) => [row.id, place]));
  const fair = Math.max(0, ...picture.nodes.map((row) => row.fair ?? 0));
  const drawn = fairLines(picture, layout);
  const shifts = new Map();
  migrations.forEach((one, place) => {
    const told = place < MOST_TOLD;
    if (one.operation === "move") drawn.push(...moveArrow(one, rows, layout, told, shifts));
    else drawn.push(...mark(one, rows, layout, told));
  });
  if (fair) drawn.push(fairText(fair, layout));
  spread(drawn.filter((one) => one.getAttribute("class") === "flight-text"));
  return drawn;
}

// Words that would be drawn over others go below them.
function spread(texts) {
  const placed = [];
  for (const text of texts) {
    const left = Number(text.getAttribute("x")) - (text.getAttribute("text-anchor") === "end" ? WORDS_WIDE : 0);
    let y = Number(text.getAttribute("y"));
    while (placed.some((other) => Math.abs(other.left - left) < WORDS_WIDE && Math.abs(other.y - y) < WORDS_HIGH)) y += WORDS_HIGH;
    placed.push({ left, y });
    text.setAttribute("y", y);
  }
}

export function partOf(one) {
  const total = one.progress?.bytes_total ?? 0;
  return total ? Math.max(0, Math.min(1, (one.progress.bytes_done ?? 0) / total)) : 0;
}

// Nodes of equal weight have one line through all of them; others have their own.
function fairLines(picture, layout) {
  return picture.nodes.flatMap((row, place) => {
    if (row.fair === null) return [];
    const x = (row.fair / layout.most) * layout.width;
    const next = picture.nodes[place + 1];
    const end = place * layout.step + (next && next.fair === row.fair ? layout.step : layout.height + Math.min(4, layout.gap));
    return [svg("line", { class: "fair", x1: x, x2: x, y1: place * layout.step - 2, y2: end })];
  });
}

function fairText(fair, layout) {
  const text = svg("text", { class: "fair-text", x: (fair / layout.most) * layout.width + 5, y: layout.total - layout.gap + 14 });
  text.textContent = layout.gap > 12 ? "fair share" : "";
  return text;
}

function placeOf(one, rows, layout) {
  const known = one.sources.map((id) => layout.places.get(id)).filter((at) => at !== undefined);
  if (known.length) return { x: layout.x[known[0]] + layout.w[known[0]] / 2, w: layout.w[known[0]], y: layout.y[known[0]] };
  const row = rows.get(one.source_node);
  return row === undefined ? null : { x: widthOf(row, layout) / 2, w: 6, y: row * layout.step };
}

const widthOf = (row, layout) => (layout.totals[row] / layout.most) * layout.width;

// Before the switch: from its place to where it will be. After it the tablet is already there, and its former copy waits
// to be dropped: then the way that it came.
function moveArrow(one, rows, layout, told, shifts) {
  const target = rows.get(one.target_node);
  const source = rows.get(one.source_node);
  if (target === undefined || source === target) return [];
  const at = layout.places.get(one.sources[0]);
  if (at !== undefined && layout.y[at] === target * layout.step) return landed(one, at, source, layout, told);
  const from = placeOf(one, rows, layout);
  if (!from) return [];
  const start = widthOf(target, layout) + (shifts.get(target) ?? 0);
  const w = Math.max(6, Math.min(from.w, layout.width - start - 2));
  shifts.set(target, (shifts.get(target) ?? 0) + w + 2);
  const x = Math.min(start, layout.width - w - 1);
  const y = target * layout.step;
  const path = svg("path", { class: "flight", d: curve(from.x, from.y, x + w / 2, y, layout) });
  const part = partOf(one);
  const spot = path.getPointAtLength(path.getTotalLength() * part);
  const dot = svg("circle", { class: "dot", cx: spot.x, cy: spot.y, r: 5 });
  const ghost = svg("rect", { class: "ghost", x: x + 1, y: y + 1, width: w - 2, height: layout.height - 2, rx: 2 });
  const text = told ? [words(`${one.sources[0]} · ${Math.round(100 * part)} %`, spot.x, spot.y, layout)] : [];
  return [ghost, path, dot, ...text];
}

function landed(one, at, source, layout, told) {
  const [x, y, w] = [layout.x[at], layout.y[at], Math.max(4, layout.w[at])];
  const way = source === undefined ? [] : [svg("path", { class: "flown", d: curve(widthOf(source, layout) + 6, source * layout.step, x + w / 2, y, layout) })];
  const frame = svg("rect", { class: "landed", x: x + 1, y: y + 1, width: w - 2, height: layout.height - 2, rx: 2 });
  return [...way, frame, ...(told ? [words(`${one.sources[0]} has arrived`, x + w / 2, y + layout.height + 8, layout)] : [])];
}

// From one row's edge to that of another one, above or below it.
function curve(x1, row1, x2, row2, layout) {
  const down = row2 > row1;
  const y1 = down ? row1 + layout.height : row1;
  const y2 = down ? row2 : row2 + layout.height;
  const bend = (y2 - y1) * 0.6;
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}

function mark(one, rows, layout, told) {
  const at = placeOf(one, rows, layout);
  if (!at) return [];
  const last = one.sources.map((id) => layout.places.get(id)).filter((place) => place !== undefined).pop();
  const right = last === undefined ? at.x + at.w / 2 : layout.x[last] + layout.w[last];
  const left = at.x - at.w / 2;
  const frame = svg("rect", { class: "ghost", x: left, y: at.y, width: Math.max(4, right - left), height: layout.height });
  const cut = one.operation === "split" ? [svg("line", { class: "cut", x1: at.x, x2: at.x, y1: at.y - 3, y2: at.y + layout.height + 3 })] : [];
  return [frame, ...cut, ...(told ? [words(`${one.operation} ${Math.round(100 * partOf(one))} %`, at.x, at.y - 6, layout)] : [])];
}

function words(text, x, y, layout) {
  const end = x > layout.width - 90;
  const made = svg("text", { class: "flight-text", x: end ? x - 9 : x + 9, y: Math.max(11, y + 4), "text-anchor": end ? "end" : "start" });
  made.textContent = text;
  return made;
}
