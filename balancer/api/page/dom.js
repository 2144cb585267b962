// Small helpers: everything that comes from the server becomes text, never markup.

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key === "onclick") made.addEventListener("click", value);
    else if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(asNode));
  return made;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, properties = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

export function fill(id, ...children) {
  byId(id).replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

// Keeps what is there by its key, so that nothing loses the focus while it is looked at.
export function keyed(id, items, keyOf, make, update) {
  const parent = byId(id);
  const known = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const key = String(keyOf(item));
    const found = known.get(key) ?? make(item);
    found.dataset.key = key;
    update(found, item);
    return found;
  });
  const same = wanted.length === parent.children.length && wanted.every((child, at) => parent.children[at] === child);
  if (!same) parent.replaceChildren(...wanted);
}

const drawn = new Map();

// Draws again only what has changed.
export function fillOnce(id, key, make) {
  const text = JSON.stringify(key);
  if (drawn.get(id) === text) return;
  drawn.set(id, text);
  fill(id, ...make());
}

export function table(headings, rows) {
  const kind = (at) => (typeof rows[0]?.[at] === "number" ? "number" : "");
  const head = element("tr", {}, ...headings.map((text, at) => element("th", { scope: "col", class: kind(at) }, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((value, at) => cell(value, headings[at]))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// On a phone a row becomes a card, and each cell says by itself what it is.
function cell(value, heading) {
  if (value instanceof Node) return element("td", { "data-heading": heading }, value);
  const kind = typeof value === "number" ? "number" : "";
  return element("td", { class: kind, "data-heading": heading }, kind ? number(value) : value);
}

const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  return Math.abs(value) >= 10000 ? compact.format(value) : plain.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${plain.format(value)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${plain.format(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h${Math.round((seconds % 3600) / 60) ? ` ${Math.round((seconds % 3600) / 60)} min` : ""}`;
  return `${Math.round(seconds / 86400)} days`;
}

const TIMES = new Set(["at", "since", "created", "updated", "begun", "began", "ended", "first", "last", "start", "end", "switched", "closes_at", "next_open", "paused_until", "pinned_until", "unreachable_since"]);
const seconds = (text) => (/^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(text) ? Date.parse(text) / 1000 : text);

// Times come as RFC 3339 writes them and are seconds in here. They are known by their fields: a name may look like a time.
export function readDocument(text) {
  return JSON.parse(text, (key, value) => {
    if (typeof value === "string") return TIMES.has(key) ? seconds(value) : value;
    return key === "times" && Array.isArray(value) ? value.map(seconds) : value;
  });
}

export const asTime = (at) => new Date(at * 1000).toISOString();

const pad = (value) => String(value).padStart(2, "0");

export function clock(seconds) {
  if (!seconds) return "–";
  const at = new Date(seconds * 1000);
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const today = at.toDateString() === new Date().toDateString();
  return today ? time : `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}

export function bounds(tablet) {
  if (tablet.modulus) return `hash % ${tablet.modulus} = ${tablet.remainder}`;
  const lower = tablet.lower ? `[${tablet.lower.join(", ")}` : "(lowest";
  return `${lower} … ${tablet.upper ? tablet.upper.join(", ") : "highest"})`;
}
