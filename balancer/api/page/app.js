// The page: asks /v1/overview again and again and draws what it says; pictures and series come beside it. What changes
// anything goes through actions.js.
import { createActions, keepToken, keptToken } from "./actions.js";
import { createCharts } from "./charts.js";
import { createCluster } from "./cluster.js";
import { asTime, byId, element, fill, readDocument } from "./dom.js";
import { drawChip, drawFacts, drawPastTruth, drawSentences, drawTruth, drawWindows, troubleOf } from "./header.js";
import { createKeys } from "./keys.js";
import { drawChecks, drawFinished, drawHistory, drawHot, drawNext, drawQuarantined, drawRunning, drawSchedules } from "./lists.js";
import { createPanel } from "./panel.js";
import { createTimeline } from "./timeline.js";

const PERIOD = 2000;
const HIDDEN_PERIOD = 15000;
const ORDER = ["blocked", "working", "waiting for the schedule", "balanced"];

const page = { overview: null, tag: null, token: keptToken(), lost: null, skew: 0, bundle: "", chosen: false, filtered: false, timer: 0, ticked: 0, at: null, picture: null, series: null, turn: 0 };

async function ask(path, headers = {}, options = {}) {
  if (page.token) headers.Authorization = `Bearer ${page.token}`;
  return fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10000), ...options });
}

async function askJson(path) {
  const answer = await ask(path);
  if (answer.ok) return readDocument(await answer.text());
  const problem = await answer.json().catch(() => ({}));
  throw new Error(problem.detail ?? `${path}: ${answer.status}`);
}

async function send(path, document) {
  try {
    const answer = await ask(path, { "Content-Type": "application/json" }, { method: "POST", body: JSON.stringify(document), signal: AbortSignal.timeout(40000) });
    return { ok: answer.ok, body: await answer.json() };
  } catch (error) {
    return { ok: false, body: { detail: `no answer: ${error.message}` } };
  }
}

const actions = createActions(send, () => poll());
const panel = createPanel(askJson, actions);
const cluster = createCluster(panel.open);
const keys = createKeys(askJson);
const charts = createCharts();
const timeline = createTimeline(travel);
const serverNow = () => Date.now() / 1000 + page.skew;
const ofBundle = (list, key = "bundle") => list.filter((item) => item[key] === page.bundle);

async function poll() {
  clearTimeout(page.timer);
  try {
    const answer = await ask("/v1/overview", page.tag ? { "If-None-Match": page.tag } : {});
    byId("token-form").hidden = answer.status !== 401 && byId("token-form").dataset.wanted !== "yes";
    if (answer.status === 200) {
      page.tag = answer.headers.get("ETag");
      page.overview = readDocument(await answer.text());
      page.skew = Date.parse(answer.headers.get("Date")) / 1000 - Date.now() / 1000;
      chooseBundle(page.overview.status.bundles);
      draw();
      await drawPictures();
    } else if (answer.status !== 304) {
      throw new Error(answer.status === 401 ? "it asks for a token" : `it answers ${answer.status}`);
    }
    page.skew = Date.parse(answer.headers.get("Date")) / 1000 - Date.now() / 1000;
    page.lost = null;
  } catch (error) {
    page.lost = page.lost ?? { at: Date.now() / 1000, why: error.message };
  }
  drawAges();
  clearTimeout(page.timer);
  page.timer = setTimeout(poll, document.hidden ? HIDDEN_PERIOD : PERIOD);
}

// The bundle that needs most attention, unless somebody has chosen another.
function chooseBundle(bundles) {
  const ordered = [...bundles].sort((a, b) => ORDER.indexOf(a.word) - ORDER.indexOf(b.word));
  if (!ordered.some((one) => one.name === page.bundle)) page.chosen = false;
  if (!page.chosen && ordered.length) page.bundle = ordered[0].name;
  const select = byId("bundle");
  const shown = [...select.options].map((option) => option.textContent);
  const wanted = bundles.map((one) => `${one.name} · ${one.word}`);
  if (JSON.stringify(shown) !== JSON.stringify(wanted)) select.replaceChildren(...bundles.map((one, at) => element("option", { value: one.name }, wanted[at])));
  select.value = page.bundle;
  byId("bundle-label").hidden = bundles.length < 2;
  byId("bundle-name").textContent = bundles.length === 1 ? page.bundle : "";
}

function draw() {
  const { overview } = page;
  const bundle = overview.status.bundles.find((one) => one.name === page.bundle);
  drawSentences(overview.status.bundles);
  drawSchedules(ofBundle(overview.schedules), serverNow());
  drawChecks(overview.checks);
  drawHot(ofBundle(overview.hot));
  if (!page.filtered) drawHistory(overview.history);
  if (!bundle) {
    byId("truth").textContent = "No bundle has been looked at yet";
    return;
  }
  const migrations = ofBundle(overview.migrations);
  const [schedule] = ofBundle(overview.schedules);
  drawWindows(schedule, serverNow());
  drawFinished(migrations.filter((one) => one.finished));
  panel.update(overview.nodes, serverNow());
  if (page.at !== null) return;
  drawChip(bundle.word);
  const down = ofBundle(overview.nodes).some((node) => !node.reachable && node.state !== "lost");
  drawTruth(bundle, schedule, serverNow(), down);
  drawNow(bundle, migrations.filter((one) => !one.finished));
}

function drawNow(bundle, running) {
  const key = JSON.stringify([bundle.paused, actions.may(), bundle.name]);
  if (byId("steer").dataset.key !== key) {
    byId("steer").dataset.key = key;
    fill("steer", ...actions.ofBundle(bundle));
  }
  drawRunning(running, serverNow(), actions.may(), actions.ofMigration);
  drawQuarantined(ofBundle(page.overview.quarantined), actions.may(), actions.ofQuarantined);
  drawNext(ofBundle(page.overview.plans)[0], bundle, running.flatMap((one) => one.sources), { key: actions.may(), of: (one, plan) => actions.ofAction(one, plan, bundle), ofPlan: (plan) => actions.ofPlan(plan, bundle) });
}

// Pictures and series change with each tick of the bundle; what runs changes between them.
async function drawPictures() {
  const bundle = page.overview.status.bundles.find((one) => one.name === page.bundle);
  if (!bundle) return;
  const named = encodeURIComponent(page.bundle);
  if (page.ticked !== bundle.at || page.picture?.bundle !== page.bundle) {
    page.ticked = bundle.at;
    const day = byId("span").value === "day";
    const [picture, series] = await Promise.all([page.at === null ? askJson(`/v1/cluster?bundle=${named}`) : page.picture, askJson(`/v1/series?bundle=${named}&day=${day}`)]);
    Object.assign(page, { picture, series });
    charts.update(series, bundle.score, page.at);
    drawPast();
    keys.load();
  } else drawPast();
}

function drawPast() {
  const migrations = ofBundle(page.overview.migrations);
  const finished = migrations.filter((one) => one.finished);
  const moment = page.at ?? serverNow();
  const running = migrations.filter((one) => (page.at === null ? !one.finished : one.created <= moment && (!one.finished || moment < one.updated)));
  if (page.picture) cluster.update(page.picture, page.at === null ? ofBundle(page.overview.nodes) : [], running, serverNow());
  keys.update(ofBundle(page.overview.tables), finished, page.at);
  if (page.series) timeline.update(page.series.since, finished, serverNow());
  if (page.at !== null) drawRunning(running, moment, "past", () => []);
}

async function travel(at) {
  page.at = at;
  page.turn += 1;
  const turn = page.turn;
  document.body.classList.toggle("past", at !== null);
  if (!page.overview) return;
  const named = encodeURIComponent(page.bundle);
  try {
    const picture = await askJson(`/v1/cluster?bundle=${named}${at === null ? "" : `&at=${encodeURIComponent(asTime(at))}`}`);
    if (turn !== page.turn) return;
    page.picture = picture;
    if (at !== null) drawPastTruth(picture);
  } catch (error) {
    byId("why").textContent = error.message;
  }
  if (page.series) charts.update(page.series, page.overview.status.bundles.find((one) => one.name === page.bundle)?.score, at);
  drawPast();
  if (at === null) {
    fill("running");
    draw();
  }
}

function drawAges() {
  const trouble = troubleOf(page.overview, page.lost, serverNow());
  const alarm = byId("alarm");
  if (alarm.textContent !== trouble) alarm.textContent = trouble;
  alarm.hidden = !trouble;
  if (page.overview) drawFacts(page.overview, serverNow());
  document.body.classList.toggle("stale", Boolean(trouble));
}

async function drawAccess() {
  try {
    const access = await askJson("/v1/access");
    byId("sign-in").hidden = !access.sign_in;
    byId("sign-in").textContent = "Sign in to act";
    if (actions.allow(access.may_change) && page.overview) draw();
    panel.refresh();
    return access;
  } catch {
    return null;
  }
}

async function signIn(event) {
  event.preventDefault();
  page.token = byId("token").value;
  byId("token").value = "";
  const access = await drawAccess();
  const fine = access !== null && (access.may_change || !access.sign_in);
  byId("token-says").textContent = fine ? "" : "This is not a token of this instance.";
  if (!fine) page.token = "";
  keepToken(page.token);
  byId("token-form").dataset.wanted = fine ? "" : byId("token-form").dataset.wanted;
  page.tag = null;
  poll();
}

async function filterHistory(event) {
  event.preventDefault();
  const query = new URLSearchParams({ limit: "100", steps: "false" });
  for (const name of ["tablet", "node"]) {
    const value = byId(`history-${name}`).value.trim();
    if (value) query.set(name, value);
  }
  page.filtered = query.has("tablet") || query.has("node");
  if (!page.filtered) return page.overview && drawHistory(page.overview.history);
  query.set("bundle", page.bundle);
  try {
    drawHistory((await askJson(`/v1/history?${query}`)).items);
  } catch (error) {
    fill("history-list", element("p", { class: "failed" }, `The history could not be read: ${error.message}`));
  }
  return undefined;
}

byId("history-form").addEventListener("submit", filterHistory);
byId("history-form").addEventListener("reset", (event) => setTimeout(() => filterHistory(event)));
byId("bundle").addEventListener("change", (event) => {
  Object.assign(page, { bundle: event.target.value, chosen: true, ticked: 0, tag: null });
  poll();
});
byId("span").addEventListener("change", () => { page.ticked = 0; page.tag = null; poll(); });
byId("sign-in").addEventListener("click", () => {
  const form = byId("token-form");
  form.dataset.wanted = "yes";
  form.hidden = false;
  byId("token").focus();
});
byId("token-form").addEventListener("submit", signIn);
document.addEventListener("visibilitychange", () => document.hidden || poll());
setInterval(drawAges, 1000);
poll().then(drawAccess);
