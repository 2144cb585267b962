// What runs, what comes next, what was, and the quieter lists. Nothing is fetched from here.
import { partOf } from "./arrows.js";
import { bounds, bytes, clock, duration, element, fill, fillOnce, keyed, number, table } from "./dom.js";
import { strip } from "./header.js";

const quiet = (text) => element("p", { class: "quiet" }, text);

export function describe(one) {
  const tablets = `tablet${one.sources.length > 1 ? "s" : ""} ${one.sources.join(", ")}`;
  const where = one.operation === "move" ? `${one.source_node} → ${one.target_node}` : `into ${one.targets.join(", ")} on ${one.source_node}`;
  return `${one.operation} of ${tablets} of ${one.table}, ${where}`;
}

// The keys say whether there were buttons: who signs in gets them at once.
export function drawRunning(running, now, may, actions) {
  if (!running.length) return fill("running", quiet("Nothing is being migrated."));
  return keyed("running", running, (one) => `${one.id} ${may}`, (one) => runningCard(one, actions), (made, one) => updateCard(made, one, now));
}

function runningCard(one, actions) {
  return element(
    "article", { class: "move", "data-migration": one.id },
    element("p", {}, element("b", { class: "title" }), " ", element("span", { class: "where quiet" })),
    element("meter", { min: 0, max: 1, value: 0, "aria-label": `Progress of ${describe(one)}` }),
    element("p", { class: "quiet step" }),
    element("div", { class: "way", "aria-hidden": "true" }),
    element("p", { class: "waiting waits" }),
    element("p", { class: "buttons" }, ...actions(one)),
  );
}

function updateCard(made, one, now) {
  const progress = one.progress ?? {};
  const total = progress.bytes_total ?? 0;
  const facts = [
    one.state.replaceAll("_", " "),
    total ? `${bytes(Math.min(progress.bytes_done ?? 0, total))} of ${bytes(total)}` : "",
    progress.bytes_per_second ? `${bytes(progress.bytes_per_second)}/s` : "",
    (progress.eta_seconds ?? null) !== null ? `${duration(progress.eta_seconds)} left` : "",
    progress.lag_bytes ? `${bytes(progress.lag_bytes)} behind` : "",
    `for ${duration(Math.max(0, Math.round(now - one.created)))}`,
  ].filter(Boolean);
  const put = (selector, text) => { made.querySelector(selector).textContent = text; };
  put(".title", `${one.operation} ${one.sources.join(" + ")} · ${one.table}`);
  put(".where", one.operation === "move" ? `${one.source_node} → ${one.target_node}` : `on ${one.source_node}`);
  put(".step", facts.join(" · "));
  put(".waits", progress.waiting_for ? `waits for ${progress.waiting_for}` : "");
  made.querySelector("meter").value = partOf(one);
  drawWay(made.querySelector(".way"), one);
  made.title = one.reason;
}

// A mark for each state that it goes through; one on its way back has none, and its state says so.
function drawWay(box, one) {
  const at = one.way.indexOf(one.state);
  const key = `${at} of ${at < 0 ? 0 : one.way.length}`;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(...(at < 0 ? [] : one.way).map((state, place) =>
    element("i", { class: place < at ? "gone" : place === at ? "here" : "", title: state.replaceAll("_", " ") })));
}

export function drawQuarantined(quarantined, may, release) {
  fillOnce("quarantined", [quarantined, may], () => (quarantined.length ? [element(
    "div", { class: "move trouble" }, element("b", {}, "In quarantine, until an operator has looked at them"),
    ...quarantined.map((one) => element("p", {}, `tablet ${one.id} of ${one.table} on ${one.node} `, release(one))),
  )] : []));
}

// The plan in one list. It says that there is nothing to do only where nothing runs and nothing waits.
export function drawNext(plan, bundle, running, actions) {
  if (!plan) return fill("plans", quiet("No plan has been made yet."));
  return fillOnce("plans", [plan, running, bundle.word, actions.key], () => planParts(plan, bundle, running, actions));
}

function planParts(plan, bundle, running, actions) {
  // What runs is shown under Now, and not twice.
  const due = plan.actions.filter((one) => !one.tablets.some((id) => running.includes(id)));
  const shown = due.slice(0, 8);
  const told = (one, at) => (at && shown[at - 1].reason === one.reason ? null : element("span", { class: "reason quiet" }, one.reason));
  const rows = shown.map((one, at) => element(
    "li", { title: one.reason }, element("b", {}, `${one.kind} ${one.tablets.join(" + ")}`),
    element("span", { class: "quiet" }, `${one.target && one.target !== one.source ? `${one.source} → ${one.target}` : one.source} · ${bytes(one.bytes)}`),
    ...actions.of(one, plan), told(one, at),
  ));
  const more = plan.action_count - plan.actions.length + due.length - shown.length;
  const said = plan.notes.some((note) => note.includes(`${plan.pending_moves} more moves`));
  const kept = Object.values(plan.counts).reduce((sum, count) => sum + count, 0);
  return [
    rows.length ? element("ul", { class: "next" }, ...rows) : null,
    more > 0 ? quiet(`and ${more} more`) : null,
    plan.pending_moves && !said ? quiet(`${plan.pending_moves} more moves (${bytes(plan.pending_bytes)}) follow as the budgets allow.`) : null,
    !rows.length && !plan.pending_moves ? quiet(running.length ? "Nothing more after what runs now." : "Nothing is planned.") : null,
    ...plan.node_changes.map((one) => quiet(`node ${one.node} becomes ${one.condition}: ${one.reason}`)),
    ...plan.notes.map((note) => quiet(note.replace(/^balanced: /, ""))),
    ...actions.ofPlan(plan),
    kept ? element("details", {}, element("summary", {}, `Kept back: ${kept} ${kept === 1 ? "candidate" : "candidates"}`),
      element("ul", {}, ...plan.rejections.slice(0, 12).map((one) => element("li", {}, element("b", {}, `${one.kind} ${one.tablets.join(" + ")}${one.target ? ` to ${one.target}` : ""}: `), one.reason)))) : null,
  ].filter(Boolean);
}

export function drawFinished(finished) {
  if (!finished.length) return fill("finished", quiet("None has ended yet."));
  return keyed("finished", finished.slice(0, 12), (one) => one.id + one.updated, finishedLine, () => undefined);
}

function finishedLine(one) {
  const good = one.state === "done";
  const { pause_seconds: pause } = one.detail;
  const facts = [bytes(one.detail.bytes), `took ${duration(one.updated - one.created)}`, pause === null ? "" : `write pause ${duration(pause)}`].filter(Boolean);
  return element(
    "details", { class: "past" },
    element("summary", {}, element("time", { class: "quiet" }, clock(one.updated)), " ", element("span", { class: good ? "balanced" : "failed" }, good ? "✓ " : `${one.state} `), describe(one), element("span", { class: "quiet" }, ` · ${facts.join(" · ")}`)),
    element("p", {}, one.error || one.reason || "No reason was given."),
    quiet([one.mode, `attempt ${one.attempt}`, good ? (one.detail.bulk_verified ? "copy verified" : "") : "nothing was switched", `id ${one.id}`].filter(Boolean).join(", ")),
  );
}

export function drawHot(hot) {
  fillOnce("hot", hot, () => (hot.length ? [table(
    ["Tablet", "Table", "Node", "Keys", "Writes/s", "Reads/s", "Size"],
    hot.map((one) => [`${one.id}`, one.table, one.node, bounds(one), one.write_rate, one.read_rate, bytes(one.bytes)]),
  )] : [quiet("All tablets are idle.")]));
}

export function drawSchedules(schedules, now) {
  fill("schedules", ...schedules.map((one) => scheduleBlock(one, now)));
}

function scheduleBlock(one, now) {
  const state = one.open ? `open${one.closes_at ? ` until ${clock(one.closes_at)}` : ""}` : one.next_open ? `closed until ${clock(one.next_open)}` : "never opens";
  const formula = one.level ? `${one.formula} (${one.level}, ${one.timezone})` : "no schedule: always open";
  const windows = one.windows.map(({ start, end }) => `${clock(start)} – ${end ? clock(end) : "without end"}`).join(", ");
  return element(
    "div", { "data-schedule": one.bundle },
    element("h3", {}, `${one.bundle}: `, element("span", { class: one.open ? "balanced" : "waiting" }, state)),
    strip(one, now),
    element("p", { class: "hours quiet" }, ...["00", "06", "12", "18", "24"].map((hour) => element("span", {}, hour))),
    quiet(`${formula}. Next windows, on this screen's clock: ${windows || "none"}`),
    ...(one.too_short ? [element("p", { class: "blocked" }, one.too_short)] : []),
  );
}

export function drawChecks(checks) {
  const found = checks.reduce((sum, one) => sum + one.findings.length + one.more, 0);
  fillOnce("check-word", [found, checks.length], () => (found ? [element("span", { class: "blocked" }, `${found} found`)] : []));
  fillOnce("check-list", checks, () => (checks.length ? checks.map(checkBlock) : [quiet("No bundle is checked: [checks] in its file switches it on.")]));
}

function checkBlock(one) {
  const count = one.findings.length + one.more;
  const last = one.past[one.past.length - 1];
  const state = one.kind ? `round ${one.round} is at ${one.kind}, ${number(one.rows)} rows so far` : `round ${one.round} is over`;
  const found = one.findings.map((finding) => [clock(finding.first), finding.kind, finding.text, finding.advice]);
  const rounds = one.past.slice(-10).reverse().map((past) => [past.number, clock(past.ended), duration(past.ended - past.began), past.rows, past.findings, past.unchecked]);
  return element(
    "div", { "data-checks": one.bundle },
    element("h3", {}, `${one.bundle}: `, element("span", { class: count ? "blocked" : "balanced" }, count ? `${count} found` : last ? "nothing found" : "not finished yet")),
    quiet(state),
    found.length ? table(["Since", "Kind", "What", "Next step"], found) : null,
    one.more ? quiet(`and ${one.more} more`) : null,
    ...one.unchecked.map((why) => quiet(`Not checked: ${why}`)),
    rounds.length ? table(["Round", "Ended", "Took", "Rows", "Found", "Not checked"], rounds) : null,
  );
}

export function drawHistory(entries) {
  fillOnce("history-list", entries, () => {
    if (!entries.length) return [quiet("Nothing found.")];
    const rows = entries.map((one) => {
      const shown = one.changes.slice(0, 6).map((change) => element("li", {}, change.text));
      const more = one.change_count > shown.length ? [element("li", { class: "quiet" }, `and ${one.change_count - shown.length} more`)] : [];
      return [clock(one.at), one.author, one.reason, element("ul", {}, ...shown, ...more)];
    });
    return [table(["When", "Who", "Why", "What"], rows)];
  });
}
