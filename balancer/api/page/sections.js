// Draws the sections of an overview. Nothing is fetched from here.
import { bytes, clock, duration, element, fill, number, svg, table } from "./dom.js";

const MOST_NODES = 200;
const DIMENSIONS = [
  ["bytes", "bytes", bytes],
  ["memory", "memory", bytes],
  ["write_rate", "writes/s", number],
  ["read_rate", "reads/s", number],
  ["tablets", "tablets", number],
];

export function drawNodes(nodes, bundles, scores) {
  fill("scores", ...bundles.map((bundle) => scoreLine(bundle, scores[bundle.name] ?? [])));
  const most = {};
  const means = {};
  const counts = {};
  for (const node of nodes) counts[node.bundle] = (counts[node.bundle] ?? 0) + 1;
  for (const node of nodes) {
    for (const [name] of DIMENSIONS) {
      const load = node.loads[name] ?? 0;
      const key = `${node.bundle}/${name}`;
      most[key] = Math.max(most[key] ?? 0, load, node.capacity[name] ?? 0);
      means[key] = (means[key] ?? 0) + load / counts[node.bundle];
    }
  }
  const shown = nodes.slice(0, MOST_NODES).map((node) => nodeCard(node, most, means));
  const more = nodes.length > MOST_NODES ? element("p", { class: "quiet" }, `and ${nodes.length - MOST_NODES} more nodes`) : null;
  fill("node-list", ...shown, more);
}

function scoreLine(bundle, points) {
  if (!bundle.score) return element("p", { class: "quiet" }, `${bundle.name}: no plan has been made yet`);
  const worst = Object.entries(bundle.imbalance).sort((a, b) => b[1] - a[1])[0];
  const text = worst ? `fullest node ${number(worst[1])} × the mean in ${worst[0]}` : "";
  return element(
    "div", { class: "score" },
    element("span", {}, bundle.name, " balance ", element("b", {}, bundle.score.now.toFixed(1)), " of 100"),
    sparkline(points),
    element("span", { class: "quiet" }, `after the plan ${bundle.score.after_plan.toFixed(1)}, at best ${bundle.score.bound.toFixed(1)}; ${text}`),
  );
}

function sparkline(points) {
  const drawn = svg("svg", { class: "spark", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": "The score over the last hour" });
  if (points.length > 1) {
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    const path = points.map(([at, score], place) => `${place ? "L" : "M"}${((at - first) / (last - first || 1)) * 100} ${98 - score * 0.96}`);
    drawn.append(svg("path", { d: path.join("") }));
  }
  return drawn;
}

function nodeCard(node, most, means) {
  const bars = DIMENSIONS.filter(([name]) => most[`${node.bundle}/${name}`] > 0).map(([name, label, format]) => {
    const key = `${node.bundle}/${name}`;
    return bar(label, node.loads[name] ?? 0, most[key], means[key], node.capacity[name], format);
  });
  const state = node.reachable ? node.state : "unreachable";
  const notes = [
    node.reason,
    node.error,
    node.unreachable_since ? `silent since ${clock(node.unreachable_since)}` : "",
    node.rewound,
    node.disagreements ? `${node.disagreements} disagreements with the directory` : "",
    node.retained_wal_bytes > 1e9 ? `slots keep ${bytes(node.retained_wal_bytes)} of WAL` : "",
  ].filter(Boolean);
  return element(
    "article", { class: node.reachable && !node.disagreements ? "card" : "card trouble", "data-node": node.id },
    element("header", {}, element("b", {}, node.id), element("span", { class: `chip ${stateClass(state)}` }, state)),
    ...bars,
    dayStrip(node),
    ...notes.map((note) => element("p", { class: "quiet" }, note)),
  );
}

// One column per hour, as high as the node's load over its share; the line is the share itself, the top twice of it.
function dayStrip(node) {
  const known = node.day.map((level, hour) => [level, hour]).filter(([level]) => level !== null);
  if (!known.length) return null;
  const [worst, at] = known.reduce((most, one) => (one[0] > most[0] ? one : most));
  const text = `The day in reads and writes: at most ${number(worst)} × its share, from ${at} to ${at + 1} h; ${known.length} of 24 hours are known`;
  const drawn = svg("svg", { class: "day", viewBox: "0 0 24 2", preserveAspectRatio: "none", role: "img", "aria-label": text });
  for (const [level, hour] of known) {
    const height = Math.min(2, level);
    drawn.append(svg("rect", { class: level > 1.2 ? "above" : "even", x: hour + 0.05, y: 2 - height, width: 0.9, height }));
  }
  drawn.append(svg("path", { d: "M0 1H24" }));
  return element("div", { class: "hours-of-day", title: text }, drawn, element("p", { class: "hours quiet", "aria-hidden": "true" }, ...["0", "6", "12", "18", "24 h"].map((hour) => element("span", {}, hour))));
}

function stateClass(state) {
  return { active: "balanced", draining: "working", closed: "waiting" }[state] ?? "blocked";
}

function bar(label, value, most, mean, capacity, format) {
  const filled = element("span", { class: capacity && value > capacity * 0.85 ? "fill over" : "fill" });
  filled.style.width = `${Math.min(100, (100 * value) / (most || 1))}%`;
  const mark = element("span", { class: "mean", title: "mean of the bundle" });
  mark.style.left = `${Math.min(100, (100 * mean) / (most || 1))}%`;
  const shown = capacity ? `${format(value)} of ${format(capacity)}` : format(value);
  return element(
    "div", { class: "bar" },
    element("span", {}, label),
    element("span", { class: "track", role: "img", "aria-label": `${label} ${shown}` }, filled, mark),
    element("span", { class: "value", title: shown }, format(value)),
  );
}

export function drawMigrations(migrations, quarantined, now) {
  const running = migrations.filter((one) => !one.finished);
  const finished = migrations.filter((one) => one.finished);
  fill("running", ...(running.length ? running.map((one) => runningCard(one, now)) : [element("p", { class: "quiet" }, "Nothing is being migrated.")]));
  fill("quarantined", quarantined.length ? quarantineList(quarantined) : null);
  const rows = finished.map((one) => [
    clock(one.updated),
    describe(one),
    element("span", { class: one.error ? "failed" : "" }, one.state),
    bytes(one.detail.size),
    duration(one.updated - one.created),
    duration(one.detail.pause),
    one.state !== "done" ? "–" : one.detail.bulk_verified === false ? "not verified" : "verified",
    one.error || one.reason,
  ]);
  fill("finished", finished.length ? table(["Ended", "Migration", "State", "Bytes", "Took", "Write pause", "Copy", "Why"], rows) : null);
}

function describe(one) {
  const tablets = `tablet${one.sources.length > 1 ? "s" : ""} ${one.sources.join(", ")}`;
  const where = one.operation === "move" ? `${one.source_node} → ${one.target_node}` : `into ${one.targets.join(", ")} on ${one.source_node}`;
  return `${one.operation} of ${tablets} of ${one.table}, ${where}`;
}

function runningCard(one, now) {
  const progress = one.progress ?? {};
  const total = progress.bytes_total ?? 0;
  const meter = element("progress", total ? { max: total, value: Math.min(progress.bytes_done ?? 0, total) } : {});
  const facts = [
    total ? `${bytes(progress.bytes_done)} of ${bytes(total)}` : "",
    progress.rate ? `${bytes(progress.rate)}/s` : "",
    progress.eta !== undefined && progress.eta !== null ? `${duration(progress.eta)} left` : "",
    progress.lag ? `${bytes(progress.lag)} behind` : "",
    `for ${duration(Math.max(0, now - one.created))}`,
  ].filter(Boolean);
  return element(
    "article", { class: "card", "data-migration": one.id },
    element("header", {}, element("b", {}, describe(one)), element("span", { class: "chip working" }, one.state.replace("_", " "))),
    meter,
    element("p", {}, facts.join(" · ")),
    progress.waiting_for ? element("p", { class: "waiting" }, `waits for ${progress.waiting_for}`) : null,
    element("p", { class: "quiet" }, one.reason),
  );
}

function quarantineList(quarantined) {
  const items = quarantined.map((one) => element("li", {}, `tablet ${one.id} of ${one.table} on ${one.node}`));
  return element("div", { class: "card trouble" }, element("b", {}, "In quarantine, until an operator has looked at them"), element("ul", {}, ...items));
}

export function drawPlans(plans) {
  fill("plans", ...(plans.length ? plans.map(planBlock) : [element("p", { class: "quiet" }, "No plan has been made yet.")]));
}

function planBlock(plan) {
  const head = `${plan.bundle}: score ${plan.score.now.toFixed(1)} → ${plan.score.after_plan.toFixed(1)}, at best ${plan.score.bound.toFixed(1)}`;
  const waiting = plan.pending_moves ? `; ${plan.pending_moves} more moves (${bytes(plan.pending_bytes)}) wait for the budgets` : "";
  const actions = plan.actions.map((one) => [
    one.kind, `${one.table} ${one.tablets.join(", ")}`, one.target ? `${one.source} → ${one.target}` : one.source, bytes(one.bytes), one.reason,
  ]);
  const left = plan.rejections.map((one) => [one.kind, one.tablets.join(", "), one.target, `${one.code} (${plan.counts[one.code] ?? 1})`, one.reason]);
  const changes = plan.node_changes.map((one) => element("li", {}, `node ${one.node} becomes ${one.condition}: ${one.reason}`));
  return element(
    "div", { "data-plan": plan.bundle },
    element("h3", {}, head, waiting),
    actions.length ? element("div", { class: "scroll" }, table(["Action", "Tablets", "Where", "Bytes", "Why"], actions)) : element("p", { class: "quiet" }, "There is nothing to do."),
    changes.length ? element("ul", {}, ...changes) : null,
    ...plan.notes.map((note) => element("p", { class: "quiet" }, note)),
    left.length ? element("details", {}, element("summary", {}, `Not taken: ${Object.values(plan.counts).reduce((a, b) => a + b, 0)} candidates`),
      element("div", { class: "scroll" }, table(["Action", "Tablets", "Target", "Reason (how many)", "Why not"], left))) : null,
  );
}

export function drawSchedules(schedules, now) {
  fill("schedules", ...schedules.map((one) => scheduleBlock(one, now)));
}

function scheduleBlock(one, now) {
  const state = one.open ? `open${one.closes_at ? ` until ${clock(one.closes_at)}` : ""}` : one.next_open ? `closed until ${clock(one.next_open)}` : "never opens";
  const formula = one.level ? `${one.formula} (${one.level}, ${one.timezone})` : "no schedule: always open";
  const windows = one.windows.map(([start, end]) => `${clock(start)} – ${end ? clock(end) : "without end"}`).join(", ");
  return element(
    "div", { "data-schedule": one.bundle },
    element("h3", {}, `${one.bundle}: `, element("span", { class: one.open ? "balanced" : "waiting" }, state)),
    strip(one, now),
    element("p", { class: "hours quiet" }, ...["00", "06", "12", "18", "24"].map((hour) => element("span", {}, hour))),
    element("p", { class: "quiet" }, `${formula}. Next windows, on this screen's clock: ${windows || "none"}`),
  );
}

function strip(one, now) {
  const drawn = svg("svg", { class: "strip", viewBox: "0 0 1440 10", preserveAspectRatio: "none", role: "img", "aria-label": `Open minutes of ${one.day}` });
  const bits = [...one.strip].flatMap((digit) => [8, 4, 2, 1].map((bit) => Boolean(parseInt(digit, 16) & bit)));
  let start = -1;
  for (let minute = 0; minute <= 1440; minute += 1) {
    if (bits[minute] && start < 0) start = minute;
    if (!bits[minute] && start >= 0) {
      drawn.append(svg("rect", { class: "open", x: start, y: 0, width: minute - start, height: 10 }));
      start = -1;
    }
  }
  const parts = new Intl.DateTimeFormat("en", { timeZone: one.timezone, hour: "numeric", minute: "numeric", hourCycle: "h23" }).formatToParts(new Date(now * 1000));
  const part = (name) => Number(parts.find((found) => found.type === name).value);
  drawn.append(svg("rect", { class: "now", x: part("hour") * 60 + part("minute"), y: 0, width: 4, height: 10 }));
  return drawn;
}

export function drawChecks(checks) {
  if (!checks.length) return fill("check-list", element("p", { class: "quiet" }, "No bundle is checked: [checks] in its file switches it on."));
  return fill("check-list", ...checks.map(checkBlock));
}

function checkBlock(one) {
  const count = one.findings.length + one.more;
  const last = one.past[one.past.length - 1];
  const state = one.kind ? `round ${one.round} is at ${one.kind}, ${number(one.rows)} rows so far` : `round ${one.round} is over`;
  const found = one.findings.map((finding) => [clock(finding.first), finding.kind, finding.text, finding.advice]);
  const rounds = one.past.slice(-10).reverse().map((past) => [past.number, clock(past.ended), duration(past.ended - past.began), past.rows, past.findings, past.unchecked]);
  return element(
    "div", { "data-checks": one.bundle, class: "scroll" },
    element("h3", {}, `${one.bundle}: `, element("span", { class: count ? "blocked" : "balanced" }, count ? `${count} found` : last ? "nothing found" : "not finished yet")),
    element("p", { class: "quiet" }, state),
    found.length ? table(["Since", "Kind", "What", "Next step"], found) : null,
    one.more ? element("p", { class: "quiet" }, `and ${one.more} more`) : null,
    ...one.unchecked.map((why) => element("p", { class: "quiet" }, `Not checked: ${why}`)),
    rounds.length ? table(["Round", "Ended", "Took", "Rows", "Found", "Not checked"], rounds) : null,
  );
}

export function drawHistory(entries) {
  if (!entries.length) return fill("history-list", element("p", { class: "quiet" }, "Nothing found."));
  const rows = entries.map((one) => {
    const shown = one.changes.slice(0, 6).map((change) => element("li", {}, change.text));
    const more = one.change_count > shown.length ? [element("li", { class: "quiet" }, `and ${one.change_count - shown.length} more`)] : [];
    return [clock(one.at), one.author, one.reason, element("ul", {}, ...shown, ...more)];
  });
  return fill("history-list", table(["When", "Who", "Why", "What"], rows));
}
