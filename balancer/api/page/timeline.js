// The time line: what happened in the last day, and a handle that the whole page follows into the past.
import { byId, clock, duration, svg } from "./dom.js";

const STEP = 300;

export function createTimeline(travel) {
  const state = { first: 0, last: 1, at: null, playing: 0 };
  const slider = byId("moment");

  function go(at) {
    state.at = at !== null && at < state.last - 5 ? at : null;
    byId("live").disabled = state.at === null;
    if (state.at === null) stop();
    tell();
    travel(state.at);
  }

  function tell() {
    const text = state.at === null ? `Now. Kept: ${duration(Math.max(0, state.last - state.first))} back to ${clock(state.first)}.` : `Shown: ${clock(state.at)}, ${duration(state.last - state.at)} ago.`;
    byId("moment-says").textContent = text;
    slider.setAttribute("aria-valuetext", state.at === null ? "now" : clock(state.at));
    if (state.at === null) slider.value = slider.max;
    else slider.value = String(Math.round(state.at));
  }

  function stop() {
    clearInterval(state.playing);
    state.playing = 0;
    byId("play").textContent = "▶";
    byId("play").setAttribute("aria-label", "Play from here");
  }

  function play() {
    if (state.playing) return stop();
    if (state.at === null) go(state.first);
    byId("play").textContent = "❚❚";
    byId("play").setAttribute("aria-label", "Stop");
    const stride = Math.max(10, (state.last - state.first) / STEP);
    state.playing = setInterval(() => go(state.at === null ? null : state.at + stride), 300);
    return undefined;
  }

  slider.addEventListener("input", () => go(Number(slider.value)));
  byId("live").addEventListener("click", () => go(null));
  byId("play").addEventListener("click", play);
  return {
    update(since, migrations, now) {
      state.first = Math.min(since, now - 1);
      state.last = Math.max(now, state.first + 1);
      Object.assign(slider, { min: String(Math.floor(state.first)), max: String(Math.ceil(state.last)), step: "1" });
      const dots = migrations.filter((one) => one.updated >= state.first).map((one) =>
        svg("circle", { cx: (1000 * (one.updated - state.first)) / (state.last - state.first), cy: 5, r: 3, class: one.error ? "failed" : one.operation }));
      byId("events").setAttribute("viewBox", "0 0 1000 10");
      byId("events").setAttribute("preserveAspectRatio", "none");
      byId("events").replaceChildren(...dots);
      tell();
    },
  };
}
