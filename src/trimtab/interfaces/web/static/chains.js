// The chain of a lever: its steps in words, the newest first to be read, earlier ones when asked for.

import { h, count } from "./dom.js";

const AGAIN_MS_MIN = 3000;
const loaded = new Map();

/** Read a lever's chain into a place, and keep it there. `get` answers a path with JSON or throws in words. */
export async function loadChain(place, lever, get) {
  const before = loaded.get(place.id);
  const known = before?.lever === lever ? before : { lever, about: null, first: 0, steps: [], total: 0 };
  loaded.set(place.id, { ...known, at: Date.now() });
  if (!known.steps.length) place.replaceChildren(h("p", { class: "empty" }, "Reading the ledger."));
  try {
    const told = await get(`/page/chain/${encodeURIComponent(lever)}`);
    const now = loaded.get(place.id);
    if (now?.lever !== lever) return;
    const joined = told.first <= now.first + now.steps.length && now.steps.length
      ? { first: Math.min(now.first, told.first), steps: [...now.steps.slice(0, Math.max(0, told.first - now.first)), ...told.steps] }
      : told;
    const same = joined.first === now.first && joined.steps.length === now.steps.length;
    Object.assign(now, { first: joined.first, steps: joined.steps, total: told.total });
    if (!same || !place.querySelector("ol")) draw(place, now, get);
  } catch (error) {
    loaded.delete(place.id);
    place.replaceChildren(h("p", { class: "notice" }, `The chain cannot be read: ${error.message}`));
  }
}

async function loadEarlier(place, known, get) {
  try {
    const told = await get(`/page/chain/${encodeURIComponent(known.lever)}?before=${known.first}`);
    known.steps = [...told.steps, ...known.steps];
    known.first = told.first;
    draw(place, known, get);
    place.querySelector("button")?.focus();
  } catch (error) {
    place.prepend(h("p", { class: "notice", role: "alert" }, `Earlier steps cannot be read: ${error.message}`));
  }
}

function draw(place, known, get) {
  const shown = known.first ? `the last ${known.steps.length.toLocaleString("en")} of ${count(known.total, "step")}` : count(known.total, "step");
  const earlier = known.first
    ? h("button", { type: "button", class: "more", onclick: () => loadEarlier(place, known, get) }, "Show earlier steps") : null;
  place.replaceChildren(h("p", { class: "basis" }, `${shown}, oldest first `, earlier),
    h("ol", { start: known.first + 1 }, known.steps.map((step) => {
      const [first, ...more] = step.split("\n");
      return h("li", {}, first, more.length ? h("ul", {}, more.map((line) => h("li", {}, line.trim()))) : null);
    })));
}

/** Read the open chains of levers again whose record grew, but not more often than a person can read. */
export function refreshChains(state, get) {
  for (const place of document.querySelectorAll(".chain:not([hidden])")) {
    const before = loaded.get(place.id);
    const lever = before && state.levers.find((each) => each.name === before.lever);
    if (!lever) continue;
    const about = JSON.stringify(lever);
    if (before.about === about || Date.now() - before.at < AGAIN_MS_MIN) continue;
    before.about = about;
    loadChain(place, lever.name, get);
  }
}
