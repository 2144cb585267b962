// The side panel: everything about one tablet or one node. Asked for when it is opened, and not with every tick: the
// planner is asked for it, and the answers say of when they are.
import { bounds, byId, bytes, clock, duration, element, number, svg } from "./dom.js";
import { describe } from "./lists.js";

const DIMENSIONS = [["bytes", "bytes", bytes], ["memory", "memory", bytes], ["write_rate", "writes/s", number], ["read_rate", "reads/s", number], ["tablets", "tablets", number]];
const quiet = (text) => element("p", { class: "quiet" }, text);

export function createPanel(askJson, actions) {
  const state = { about: null, opener: null, nodes: [], now: 0, asked: 0 };
  const panel = byId("panel");

  function open(about) {
    state.opener = document.activeElement;
    state.about = about;
    byId("panel-title").textContent = `${about.kind === "node" ? "Node" : "Tablet"} ${about.id}`;
    byId("panel-body").replaceChildren(quiet("Asking …"));
    panel.hidden = false;
    document.body.classList.add("with-panel");
    panel.focus();
    refresh();
  }

  function close() {
    panel.hidden = true;
    state.about = null;
    document.body.classList.remove("with-panel");
    state.opener?.focus?.();
  }

  async function refresh() {
    const { about } = state;
    if (!about) return;
    state.asked += 1;
    const turn = state.asked;
    const made = about.kind === "node" ? await nodeParts(about.id) : await tabletParts(about.id);
    if (turn === state.asked && state.about === about) byId("panel-body").replaceChildren(...made.filter(Boolean));
  }

  const asked = async (path) => {
    try {
      return await askJson(path);
    } catch (error) {
      return { problem: error.message };
    }
  };

  async function tabletParts(id) {
    const [tablet, why, past] = await Promise.all([asked(`/v1/tablets/${id}`), asked(`/v1/explain/tablets/${id}`), asked(`/v1/migrations?tablet=${id}&limit=20`)]);
    if (tablet.problem) return [quiet(tablet.problem)];
    return [
      facts([
        ["Table", tablet.table], ["Keys", bounds(tablet)], ["Owner", `${tablet.node}${why.since ? ` since ${clock(why.since)} (${duration(Math.max(0, state.now - why.since))})` : ""}`],
        ["Size", `${bytes(tablet.bytes)}, ${number(tablet.rows)} rows`], ["Load", `${number(tablet.write_rate)} writes/s, ${number(tablet.read_rate)} reads/s`],
        ["State", `${tablet.state}${tablet.pinned ? ", pinned" : ""}, epoch ${tablet.epoch}`],
      ]),
      element("p", { class: "buttons" }, ...actions.ofTablet(tablet, state.nodes)),
      element("h3", {}, "Why it is here"), ...sentences(why),
      element("h3", {}, "Why not elsewhere"), elsewhere(tablet),
      element("h3", {}, "Its migrations"), ...migrations(past),
    ];
  }

  function elsewhere(tablet) {
    const others = state.nodes.filter((node) => node.bundle === tablet.bundle && node.id !== tablet.node);
    const box = element("ul", { class: "elsewhere" });
    others.slice(0, 8).forEach(async (node) => {
      const line = element("li", {}, element("b", {}, node.id), ": …");
      box.append(line);
      const answer = await asked(`/v1/why-not/${tablet.id}?node=${encodeURIComponent(node.id)}`);
      line.replaceChildren(element("b", {}, node.id), `: ${answer.problem ?? (answer.planned ? `planned: ${answer.reason}` : answer.reason)}`,
        answer.flip ? element("span", { class: "quiet" }, ` To change that: ${answer.flip}`) : "");
    });
    if (others.length > 8) box.append(element("li", { class: "quiet" }, `and ${others.length - 8} more nodes: balancer why-not ${tablet.id} NODE`));
    return others.length ? box : quiet("There is no other node.");
  }

  async function nodeParts(id) {
    const [why, past] = await Promise.all([asked(`/v1/explain/nodes/${encodeURIComponent(id)}`), asked(`/v1/history?node=${encodeURIComponent(id)}&limit=5&steps=false`)]);
    const node = state.nodes.find((one) => one.id === id);
    if (!node) return [quiet(`There is no node ${id} any more.`)];
    const word = node.reachable ? node.state : "down";
    return [
      facts([
        ["State", [word, node.reason].filter(Boolean).join(": ")],
        node.unreachable_since ? ["Silent", `since ${clock(node.unreachable_since)}: ${node.error}`] : ["Error", node.error],
        ["Zone", node.zone], ["Server", node.version], ["Rewound", node.rewound],
        ["Disagreements", node.disagreements ? `${node.disagreements} with the directory` : ""],
        ["Database", bytes(node.database_bytes)], ["Connections", String(node.connections)],
        ["Standby slots", node.retained_wal_bytes ? `keep ${bytes(node.retained_wal_bytes)} of WAL` : "keep no WAL"],
      ]),
      element("p", { class: "buttons" }, ...actions.ofNode(node)),
      element("h3", {}, "Its loads"), ...loads(node), dayStrip(node),
      element("h3", {}, "What the plan does"), ...sentences(why),
      element("h3", {}, "Its last changes"),
      element("ul", {}, ...(past.items ?? []).map((one) => element("li", {}, `${clock(one.at)} ${one.reason} (${one.author})`))),
    ];
  }

  function loads(node) {
    const counted = state.nodes.filter((one) => one.bundle === node.bundle && one.reachable && one.state === "active");
    return DIMENSIONS.filter(([name]) => node.loads[name] || node.capacity[name]).map(([name, label, format]) => {
      const mean = counted.reduce((sum, one) => sum + (one.loads[name] ?? 0), 0) / (counted.length || 1);
      return bar(label, node.loads[name] ?? 0, mean, node.capacity[name], format);
    });
  }

  byId("panel-close").addEventListener("click", close);
  panel.addEventListener("keydown", (event) => event.key === "Escape" && close());
  return {
    open,
    refresh,
    update(nodes, now) {
      Object.assign(state, { nodes, now });
    },
  };
}

function facts(pairs) {
  return element("dl", {}, ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function sentences(why) {
  if (why.problem) return [quiet(why.problem)];
  return [...why.sentences.map((text) => element("p", {}, text)), quiet(`By the figures of ${clock(why.at)}.`)];
}

function migrations(past) {
  const list = past.items ?? [];
  if (!list.length) return [quiet(past.problem ?? "None that the directory still has.")];
  return [element("ul", {}, ...list.map((one) => element("li", {}, `${clock(one.updated)} ${describe(one)}: ${one.state}${one.error ? ` (${one.error})` : ""}`)))];
}

function bar(label, value, mean, capacity, format) {
  const most = Math.max(capacity ?? 0, value * 1.05, mean * 1.6) || 1;
  const filled = element("span", { class: capacity && value > capacity * 0.85 ? "fill over" : "fill" });
  filled.style.width = `${(100 * value) / most}%`;
  const mark = element("span", { class: "mean" });
  mark.style.left = `${(100 * mean) / most}%`;
  const shown = capacity ? `${format(value)} of ${format(capacity)}` : format(value);
  return element("div", { class: "bar" }, element("span", {}, label),
    element("span", { class: "track", role: "img", "aria-label": `${label} ${shown}, mean ${format(mean)}` }, filled, mark), element("span", { class: "value" }, shown));
}

// One column per hour, as high as the node's load over its share; the line is the share itself, the top twice of it.
function dayStrip(node) {
  const known = node.day.map((high, hour) => [high, hour]).filter(([high]) => high !== null);
  if (!known.length) return null;
  const [worst, at] = known.reduce((most, one) => (one[0] > most[0] ? one : most));
  const text = `The day in reads and writes: at most ${number(worst)} × its share, from ${at} to ${at + 1} h; ${known.length} of 24 hours are known`;
  const drawn = svg("svg", { class: "day", viewBox: "0 0 24 2", preserveAspectRatio: "none", role: "img", "aria-label": text });
  for (const [high, hour] of known) {
    const height = Math.min(2, high);
    drawn.append(svg("rect", { class: high > 1.2 ? "above" : "even", x: hour + 0.05, y: 2 - height, width: 0.9, height }));
  }
  drawn.append(svg("path", { d: "M0 1H24" }));
  return element("div", { title: text }, drawn, element("p", { class: "hours quiet", "aria-hidden": "true" }, ...["0", "6", "12", "18", "24 h"].map((hour) => element("span", {}, hour))));
}
