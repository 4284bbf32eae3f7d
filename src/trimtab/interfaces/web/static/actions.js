// What a person can do to a lever from the page: each asks for a reason, says what will happen, and waits for the answer.

import { h, words } from "./dom.js";

const BY_STATE = {
  proposed: ["start"],
  canary: ["pause", "rollback"],
  ramping: ["pause", "rollback"],
  proving: ["adopt", "pause", "rollback"],
  paused: ["resume", "rollback"],
  adopted: ["verify", "disable", "rollback"],
  disabled: ["adopt", "rollback"],
};

const WHAT = {
  start: "Its replica restarts if it needs one; then the first slice of its ramp meets it.",
  pause: "No traffic meets it until somebody resumes it. After ten peak cycles it is taken back.",
  resume: "It goes on from the first share of its ramp.",
  rollback: "All traffic goes to the baseline at once, then its replicas go back.",
  adopt: "It gets the traffic of its record without waiting for its gates. The ledger says that a person did it.",
  disable: "All traffic goes to the baseline. No trigger brings it back; you can.",
  verify: "It leaves the plan but for a slice, and its gates are asked again with and without it.",
  freeze: "Nothing is promoted any more, also after a restart. Taking back still happens.",
  unfreeze: "Promotions go on.",
};

/** The buttons of a lever in its state. */
export function leverActions(lever, ask) {
  const names = BY_STATE[lever.state] ?? [];
  if (!names.length) return null;
  return h("div", { class: "actions", role: "group", "aria-label": `Act on ${lever.name}` },
    names.map((name) => button(name, lever.name, ask)));
}

export const freezeAction = (frozen, ask) => h("div", { class: "actions" }, button(frozen ? "unfreeze" : "freeze", "", ask));

function button(action, lever, ask) {
  return h("button", { id: `act-${action}-${lever}`, type: "button", onclick: () => ask(action, lever) }, words(action));
}

/** Ask for confirmation in a dialog; `send` posts the action and throws with what the gateway said. */
export function confirmAction(action, lever, send, said) {
  const reason = h("input", { id: "act-reason", type: "text", maxlength: 500, autocomplete: "off" });
  const problem = h("p", { class: "notice", role: "alert", hidden: true });
  const go = h("button", { type: "button", class: "go" }, words(action));
  const dialog = h("dialog", { "aria-labelledby": "act-title" },
    h("h2", { id: "act-title" }, lever ? `${words(action)} ${lever}?` : `${words(action)}?`),
    h("p", {}, WHAT[action]),
    h("label", { for: "act-reason" }, "Why (kept in the ledger)"), reason, problem,
    h("div", { class: "actions" }, go, h("button", { type: "button", onclick: () => dialog.close() }, "cancel")));
  const carryOut = async () => {
    go.disabled = true;
    try {
      const done = await send({ action, name: lever, reason: reason.value });
      said(done.name ? `${done.name} is ${words(done.state ?? "unknown")}` : done.steps.join(", "));
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      go.disabled = false;
    }
  };
  go.addEventListener("click", carryOut);
  reason.addEventListener("keydown", (event) => { if (event.key === "Enter") carryOut(); });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  reason.focus();
}
