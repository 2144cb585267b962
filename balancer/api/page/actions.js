// What can be done, with the token: each action shows what it will do and how it is written on the command line, then
// is sent, then says what became of it. Without the right to change anything there are no buttons at all.
import { byId, element } from "./dom.js";

const KEPT = "tablet-balancer token";
const WAIT = 20;

export const keptToken = () => sessionStorage.getItem(KEPT) ?? "";
export const keepToken = (token) => (token ? sessionStorage.setItem(KEPT, token) : sessionStorage.removeItem(KEPT));

export function createActions(send, changed) {
  const state = { may: false, plan: "", ticked: new Set() };
  const dialog = byId("ask");

  const button = (text, wish) => element("button", { type: "button", onclick: () => ask(wish) }, text);
  const offered = (...buttons) => (state.may ? buttons.filter(Boolean) : []);

  async function ask(wish) {
    byId("ask-title").textContent = wish.title;
    const body = byId("ask-body");
    const says = element("p", { role: "status", id: "ask-says" }, "Asking what would happen …");
    const line = element("code", { id: "ask-line" });
    const go = element("button", { type: "button", class: "go", disabled: "" }, wish.verb);
    const cancel = element("button", { type: "button", onclick: () => dialog.close() }, "Close");
    const fields = (wish.fields ?? []).map((field) => fieldOf(field, () => tryOut()));
    const said = (field) => { const { value } = field.querySelector("select"); return field.dataset.name === "parts" ? Number(value) : value; };
    const given = () => ({ verb: wish.verb, ...wish.arguments, ...Object.fromEntries(fields.map((field) => [field.dataset.name, said(field)])) });
    let turn = 0;

    async function tryOut() {
      turn += 1;
      const mine = turn;
      go.disabled = true;
      const answer = await send("/v1/commands/dry-run", given());
      if (mine !== turn) return;
      says.className = answer.ok ? "" : "failed";
      says.textContent = answer.ok ? `Would be done: ${answer.body.result}` : `Would be refused: ${answer.body.detail}`;
      line.textContent = answer.body.line ?? "";
      go.disabled = !answer.ok;
    }

    go.addEventListener("click", async () => {
      go.disabled = true;
      says.textContent = "Sent; waiting for the leader …";
      const answer = await send(`/v1/commands?wait=${WAIT}`, { ...given(), author: "page" });
      const waits = answer.ok && answer.body.state === "waiting";
      says.className = !answer.ok ? "failed" : waits ? "waiting" : "balanced";
      says.textContent = !answer.ok ? `Refused: ${answer.body.detail}` : waits ? "It waits in the directory until an instance leads." : `Done: ${answer.body.result}`;
      changed();
    });
    body.replaceChildren(...fields, says, element("p", { class: "quiet" }, "The same on the command line:"), line, element("p", { class: "buttons" }, go, cancel));
    dialog.showModal();
    await tryOut();
  }

  // What is ticked stays so when the list is drawn again, as long as it is the same plan.
  function tick(one, plan) {
    if (state.plan !== plan.id) Object.assign(state, { plan: plan.id, ticked: new Set() });
    const box = element("input", { type: "checkbox", "aria-label": `Approve ${one.kind} ${one.tablets.join(" + ")}`, checked: state.ticked.has(one.number) ? "" : null });
    box.addEventListener("change", () => (box.checked ? state.ticked.add(one.number) : state.ticked.delete(one.number)));
    return box;
  }

  function fieldOf({ name, label, choices }, onchange) {
    const select = element("select", {}, ...choices.map((choice) => element("option", { value: choice }, choice)));
    select.addEventListener("change", onchange);
    return element("label", { "data-name": name }, `${label} `, select);
  }

  return {
    allow(may) {
      const before = state.may;
      state.may = may;
      return before !== may;
    },
    may: () => state.may,
    ofBundle: (bundle) => offered(
      bundle.paused ? button("Resume", { title: `Resume ${bundle.name}`, verb: "resume", arguments: { bundle: bundle.name } })
        : button("Pause", { title: `Pause ${bundle.name}`, verb: "pause", arguments: { bundle: bundle.name } }),
      button("Run now", { title: `Run ${bundle.name} now, whatever its schedule`, verb: "run-now", arguments: { bundle: bundle.name } }),
    ),
    ofMigration: (one) => offered(
      button("Cancel", { title: `Cancel ${one.operation} ${one.sources.join(" + ")}`, verb: "cancel", arguments: { migration: one.id } }),
      button("Pause", { title: `Pause ${one.operation} ${one.sources.join(" + ")}`, verb: "pause", arguments: { migration: one.id } }),
      button("Resume", { title: `Resume ${one.operation} ${one.sources.join(" + ")}`, verb: "resume", arguments: { migration: one.id } }),
    ),
    ofTablet(tablet, nodes) {
      const others = nodes.filter((node) => node.bundle === tablet.bundle && node.id !== tablet.node).map((node) => node.id);
      return offered(
        others.length ? button("Move", { title: `Move tablet ${tablet.id}`, verb: "move", arguments: { tablet: tablet.id }, fields: [{ name: "node", label: "To", choices: others }] }) : null,
        button("Split", { title: `Split tablet ${tablet.id}`, verb: "split", arguments: { tablet: tablet.id }, fields: [{ name: "parts", label: "Into", choices: ["2", "4", "8"] }] }),
        tablet.state === "quarantined" ? button("Release", { title: `Release tablet ${tablet.id}`, verb: "release", arguments: { tablet: tablet.id } }) : null,
      );
    },
    ofNode: (node) => offered(
      node.state === "active" ? button("Drain", { title: `Drain ${node.id}`, verb: "drain", arguments: { node: node.id } })
        : button("Undrain", { title: `Undrain ${node.id}`, verb: "undrain", arguments: { node: node.id } }),
    ),
    ofQuarantined: (tablet) => offered(button("Release", { title: `Release tablet ${tablet.id}`, verb: "release", arguments: { tablet: tablet.id } }))[0],
    ofPlan(plan, bundle) {
      if (bundle.mode !== "approve" || !plan.id) return [];
      const some = () => {
        const actions = [...state.ticked].sort((a, b) => a - b);
        if (actions.length) ask({ title: `Approve ${actions.length} of plan ${plan.id}`, verb: "apply", arguments: { plan: plan.id, actions } });
      };
      return offered(element("p", { class: "buttons" }, button("Approve the plan", { title: `Approve plan ${plan.id}`, verb: "apply", arguments: { plan: plan.id } }),
        element("button", { type: "button", onclick: some }, "Approve what is ticked")));
    },
    // Where plans wait for approval, parts of one are ticked; elsewhere an action is begun as an operator's own wish.
    ofAction(one, plan, bundle) {
      if (bundle.mode === "approve") return offered(tick(one, plan));
      if (one.kind === "move") return offered(button("Move", { title: `Move tablet ${one.tablets[0]} to ${one.target}`, verb: "move", arguments: { tablet: one.tablets[0], node: one.target } }));
      if (one.kind === "split") return offered(button("Split", { title: `Split tablet ${one.tablets[0]}`, verb: "split", arguments: { tablet: one.tablets[0], parts: 2 } }));
      if (one.kind === "merge") return offered(button("Merge", { title: `Merge tablets ${one.tablets.join(", ")}`, verb: "merge", arguments: { tablets: one.tablets } }));
      return [];
    },
  };
}
