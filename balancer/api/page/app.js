// The page: asks /v1/overview again and again, and draws what it says. All of it is read-only.
import { byId, clock, duration, element, fill } from "./dom.js";
import { createHeat } from "./heat.js";
import { drawChecks, drawHistory, drawMigrations, drawNodes, drawPlans, drawSchedules } from "./sections.js";

const PERIOD = 2000;
const HIDDEN_PERIOD = 15000;
const STALE_SECONDS = 90;
const ORDER = ["blocked", "working", "waiting for the schedule", "balanced"];

const page = { overview: null, tag: null, token: "", lostSince: null, skew: 0, bundle: "", filtered: false, timer: 0 };

async function ask(path, headers = {}) {
  if (page.token) headers.Authorization = `Bearer ${page.token}`;
  return fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
}

async function askJson(path) {
  const answer = await ask(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

const heat = createHeat(askJson);

async function poll() {
  clearTimeout(page.timer);
  try {
    const answer = await ask("/v1/overview", page.tag ? { "If-None-Match": page.tag } : {});
    byId("token-form").hidden = answer.status !== 401;
    if (answer.status === 200) {
      page.tag = answer.headers.get("ETag");
      page.overview = await answer.json();
      draw();
      heat.refresh(page.overview, page.bundle);
    } else if (answer.status !== 304) {
      throw new Error(answer.status === 401 ? "it asks for a token" : `it answers ${answer.status}`);
    }
    page.skew = Date.parse(answer.headers.get("Date")) / 1000 - Date.now() / 1000;
    page.lostSince = null;
  } catch (error) {
    page.lostSince = page.lostSince ?? { at: Date.now() / 1000, why: error.message };
  }
  drawAges();
  page.timer = setTimeout(poll, document.hidden ? HIDDEN_PERIOD : PERIOD);
}

function chosen(list, key) {
  return page.bundle ? list.filter((item) => item[key] === page.bundle) : list;
}

function draw() {
  const overview = page.overview;
  drawBundleChoice(overview.status.bundles);
  drawTruth(chosen(overview.status.bundles, "name"));
  drawNodes(chosen(overview.nodes, "bundle"), chosen(overview.status.bundles, "name"), overview.scores);
  drawMigrations(chosen(overview.migrations, "bundle"), chosen(overview.quarantined, "bundle"), serverNow());
  drawPlans(chosen(overview.plans, "bundle"));
  drawSchedules(chosen(overview.schedules, "bundle"), serverNow());
  drawChecks(chosen(overview.checks, "bundle"));
  if (!page.filtered) drawHistory(overview.history);
}

function drawBundleChoice(bundles) {
  const names = bundles.map((bundle) => bundle.name);
  const select = byId("bundle");
  const shown = [...select.options].slice(1).map((option) => option.value);
  if (JSON.stringify(shown) !== JSON.stringify(names)) {
    select.replaceChildren(element("option", { value: "" }, "all"), ...names.map((name) => element("option", { value: name }, name)));
    select.value = page.bundle = names.includes(page.bundle) ? page.bundle : "";
  }
  byId("bundle-label").hidden = names.length < 2;
}

function cssWord(word) {
  return word.split(" ")[0];
}

function drawTruth(bundles) {
  const ordered = [...bundles].sort((a, b) => ORDER.indexOf(a.word) - ORDER.indexOf(b.word));
  const truth = byId("truth");
  if (!ordered.length) {
    truth.textContent = "No bundle has been looked at yet";
    truth.className = "";
    return;
  }
  const first = ordered[0];
  const same = ordered.filter((bundle) => bundle.word === first.word).length;
  const text = ordered.length === 1 ? first.sentence : `${same} of ${ordered.length} bundles: ${first.word}`;
  truth.textContent = text.charAt(0).toUpperCase() + text.slice(1);
  truth.className = cssWord(first.word);
  document.title = `${first.word} – tablet-balancer`;
  fill("sentences", ...(ordered.length > 1 ? ordered.slice(0, 30).map(sentence) : ordered.filter((b) => b.error).map(sentence)));
}

function sentence(bundle) {
  const paused = bundle.paused ? ` – paused${bundle.paused_until ? ` until ${clock(bundle.paused_until)}` : ""}` : "";
  const error = bundle.error ? ` – ${bundle.error}` : "";
  return element("li", { class: cssWord(bundle.word) }, element("b", {}, bundle.name), `: ${bundle.sentence}${paused}${error}`);
}

function serverNow() {
  return Date.now() / 1000 + page.skew;
}

function drawAges() {
  const overview = page.overview;
  const alarm = byId("alarm");
  let trouble = "";
  if (page.lostSince) {
    trouble = `No answer from the daemon since ${clock(page.lostSince.at)} (${page.lostSince.why}): what you see is old.`;
  }
  if (overview) {
    const { status } = overview;
    const newest = Math.max(0, ...status.bundles.map((bundle) => bundle.at));
    const age = Math.max(0, serverNow() - newest);
    const leader = status.leader.name ? `leader ${status.leader.name}${status.leader.is_self ? " (this instance)" : ""}` : "no leader";
    byId("facts").textContent =
      `${leader}, epoch ${status.leader.epoch} · looked at ${newest ? `${duration(age)} ago` : "never"} · ` +
      `directory version ${status.directory_version} · instance ${status.instance}, version ${status.version}`;
    if (!trouble && newest && age > STALE_SECONDS) trouble = `The cluster was last looked at ${duration(age)} ago: the figures are old.`;
    if (!trouble && status.directory_age > STALE_SECONDS) trouble = `The directory has not answered for ${duration(status.directory_age)}.`;
    if (!trouble && !status.leader.name) trouble = "No instance leads: nothing is balanced until one does.";
  }
  alarm.textContent = trouble;
  alarm.hidden = !trouble;
  document.body.classList.toggle("stale", Boolean(trouble));
}

async function filterHistory(event) {
  event.preventDefault();
  const query = new URLSearchParams({ limit: "100" });
  for (const name of ["tablet", "node"]) {
    const value = byId(`history-${name}`).value.trim();
    if (value) query.set(name, value);
  }
  if (page.bundle) query.set("bundle", page.bundle);
  page.filtered = [...query.keys()].length > 1;
  if (!page.filtered) return page.overview && drawHistory(page.overview.history);
  try {
    drawHistory((await askJson(`/v1/history?${query}`)).entries);
  } catch (error) {
    fill("history-list", element("p", { class: "failed" }, `The history could not be read: ${error.message}`));
  }
  return undefined;
}

byId("history-form").addEventListener("submit", filterHistory);
byId("history-form").addEventListener("reset", (event) => setTimeout(() => filterHistory(event)));
byId("bundle").addEventListener("change", (event) => {
  page.bundle = event.target.value;
  draw();
  heat.refresh(page.overview, page.bundle);
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  page.token = byId("token").value;
  byId("token").value = "";
  poll();
});
document.addEventListener("visibilitychange", () => document.hidden || poll());
setInterval(drawAges, 1000);
poll();
