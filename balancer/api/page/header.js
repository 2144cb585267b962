// The head of the page: one chip, one line, one reason, the window; whether what is shown is old.
import { byId, bytes, clock, duration, element, fill, svg } from "./dom.js";

const STALE_SECONDS = 90;
const SHORT = { "waiting for the schedule": "waiting" };

export const shortWord = (word) => SHORT[word] ?? word;

export function drawChip(word) {
  const chip = byId("chip");
  chip.textContent = shortWord(word ?? "past");
  chip.className = `chip ${shortWord(word ?? "past")}`;
  title({ word: word ?? "past" });
}

// A browser may have a tab for each cluster.
const titled = { word: "loading", cluster: "" };

function title(changed) {
  Object.assign(titled, changed);
  document.title = [titled.word, titled.cluster, "tablet-balancer"].filter(Boolean).join(" – ");
}

// What is said never contradicts itself: while there is work, the line is the work and the reason comes second; only a
// node that is down comes before it.
export function drawTruth(bundle, schedule, now, down) {
  const line = bundle.word === "working" || bundle.word.startsWith("waiting") ? progressLine(bundle, schedule, now) : "";
  const [first, second] = line && !down ? [line, bundle.headline] : [bundle.headline, line || reason(bundle)];
  put("truth", down ? first : capital(first)); // a node is called as it is written
  put("why", [second, paused(bundle)].filter(Boolean).join(" · "));
  const overall = byId("overall");
  const progress = bundle.progress;
  const total = progress ? progress.done_bytes + progress.left_bytes : 0;
  overall.hidden = !line || !total;
  if (total) overall.value = progress.done_bytes / total;
}

// A live region that is filled with the same text again would be read out again.
function put(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function progressLine(bundle, schedule, now) {
  const one = bundle.progress;
  if (!one || one.running + one.left === 0) return "";
  const total = one.done + one.running + one.left;
  const parts = [`${one.done} of ${total} ${total === 1 ? "action" : "actions"}`];
  if (one.done_bytes + one.left_bytes) parts.push(`${bytes(one.done_bytes)} of ${bytes(one.done_bytes + one.left_bytes)}`);
  if (one.eta_seconds !== null) parts.push(`about ${duration(one.eta_seconds)} left`);
  if (schedule?.open && schedule.closes_at) parts.push(`window closes in ${duration(schedule.closes_at - now)}`);
  if (schedule && !schedule.open && schedule.next_open) parts.push(`window opens in ${duration(schedule.next_open - now)}`);
  return parts.join(" · ");
}

function reason(bundle) {
  if (!bundle.score) return "";
  const { now, after_plan: after } = bundle.score;
  return after - now >= 0.5 ? `balance ${now.toFixed(0)} of 100, ${after.toFixed(0)} after the plan` : "";
}

function paused(bundle) {
  return bundle.paused ? `paused${bundle.paused_until ? ` until ${clock(bundle.paused_until)}` : ""}` : "";
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function drawSentences(bundles) {
  fill("sentences", ...bundles.slice(0, 30).map((one) =>
    element("li", { class: shortWord(one.word) }, element("b", {}, one.name), `: ${one.sentence}${one.error ? ` – ${one.error}` : ""}`)));
}

export function drawWindows(schedule, now) {
  const box = byId("windows");
  box.hidden = !schedule || !schedule.level;
  if (box.hidden) return;
  const text = schedule.open
    ? `window ${schedule.closes_at ? `closes in ${duration(schedule.closes_at - now)}` : "is open"}`
    : schedule.next_open ? `window opens in ${duration(schedule.next_open - now)}` : "window never opens";
  box.replaceChildren(strip(schedule, now), element("p", { class: "quiet" }, text));
}

export function strip(one, now) {
  const drawn = svg("svg", { class: "strip", viewBox: "0 0 1440 10", preserveAspectRatio: "none", role: "img", "aria-label": `Open minutes of ${one.day}` });
  const bits = [...one.strip].flatMap((digit) => [8, 4, 2, 1].map((bit) => Boolean(parseInt(digit, 16) & bit)));
  let start = -1;
  for (let minute = 0; minute <= 1440; minute += 1) {
    if (bits[minute] && start < 0) start = minute;
    if ((!bits[minute] || minute === 1440) && start >= 0) {
      drawn.append(svg("rect", { class: "open", x: start, y: 0, width: minute - start, height: 10 }));
      start = -1;
    }
  }
  const wall = new Intl.DateTimeFormat("en", { timeZone: one.timezone, hour: "numeric", minute: "numeric", hourCycle: "h23" }).formatToParts(now * 1000);
  const part = (type) => Number(wall.find((piece) => piece.type === type).value);
  drawn.append(svg("rect", { class: "now", x: part("hour") * 60 + part("minute"), y: 0, width: 6, height: 10 }));
  return drawn;
}

export function troubleOf(overview, lost, now) {
  if (lost) return `No answer from the daemon since ${clock(lost.at)} (${lost.why}): what you see is old.`;
  if (!overview) return "";
  const { status } = overview;
  const newest = Math.max(0, ...status.bundles.map((bundle) => bundle.at));
  const age = Math.max(0, now - newest);
  if (newest && age > STALE_SECONDS) return `The cluster was last looked at ${duration(age)} ago: the figures are old.`;
  if (status.directory_age_seconds > STALE_SECONDS) return `The directory has not answered for ${duration(status.directory_age_seconds)}.`;
  return status.leader.name ? "" : "No instance leads: nothing is balanced until one does.";
}

function handover({ leader, spread }) {
  if (!spread || !leader.name || spread.wanted === leader.name) return "";
  return `; wanted ${spread.wanted}${spread.waits_for ? `, hands over when ${spread.waits_for}` : ""}`;
}

export function drawFacts(overview, now) {
  const { status } = overview;
  const newest = Math.max(0, ...status.bundles.map((bundle) => bundle.at));
  const leader = status.leader.name ? `leader ${status.leader.name}${status.leader.is_self ? " (this instance)" : ""}` : "no leader";
  title({ cluster: status.cluster });
  byId("facts").textContent =
    `${leader}${handover(status)}, epoch ${status.leader.epoch} · looked at ${newest ? `${duration(Math.max(0, now - newest))} ago` : "never"} · ` +
    `directory version ${status.directory_version} · instance ${status.instance}, version ${status.version}`;
}

export function drawPastTruth(picture) {
  drawChip(picture.word);
  byId("truth").textContent = `As it was at ${clock(picture.at)}`;
  byId("why").textContent = capital(picture.sentence);
  byId("overall").hidden = true;
}
