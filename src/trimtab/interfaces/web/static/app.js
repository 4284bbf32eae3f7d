// Follows the fleet: reads server-sent events, renders what changed, shows a lever's chain on request.
// fetch instead of EventSource, because off loopback every read carries the admin token in a header.

import { words, count } from "./dom.js";
import * as sections from "./sections.js";
import { confirmAction } from "./actions.js";
import { loadChain, refreshChains } from "./chains.js";
import { rolloutList, happenedList } from "./history.js";

const RETRY_MS_MIN = 1000;
const RETRY_MS_MAX = 10000;
const SILENT_MS_MAX = 6000;
const TOKEN = "trimtab-admin-token";
const SAID_MAX = 5;

const by = (id) => document.getElementById(id);
const shown = new Map();
let lastStates = null;

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function link(kind, said) {
  by("link").dataset.link = kind;
  if (by("link-words").textContent !== said) by("link-words").textContent = said;
}

/** Replace a section only if what it shows changed; what was opened, focused or scrolled to stays so. */
function show(id, value, build) {
  const text = JSON.stringify(value);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  const place = by(id);
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Map([...place.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const chains = [...place.querySelectorAll(".chain")].map((each) => [each, each.scrollTop]);
  place.replaceChildren(...build().flat(Infinity).filter(Boolean));
  for (const each of place.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = open.get(each.id);
  for (const [chain, scrolled] of chains) {
    by(chain.id)?.replaceWith(chain);
    chain.scrollTop = scrolled;
  }
  for (const each of place.querySelectorAll("[aria-expanded]")) {
    each.setAttribute("aria-expanded", String(!by(each.getAttribute("aria-controls")).hidden));
  }
  if (focused) by(focused)?.focus({ preventScroll: true });
}

function coarse(diagnosis) {
  return diagnosis && { ...diagnosis, made_ago_s: diagnosis.made_ago_s < 60 ? Math.floor(diagnosis.made_ago_s / 10) : Math.floor(diagnosis.made_ago_s / 60) };
}

function render(state) {
  show("run", { ...state.run, up_s: Math.floor(state.run.up_s / (state.run.up_s < 90 ? 1 : 60)) }, () => sections.runFacts(state));
  show("fleet", state.fleet, () => sections.fleet(state));
  show("traffic", state.traffic, () => sections.traffic(state, ask));
  show("diagnosis", coarse(state.diagnosis), () => sections.diagnosis(state));
  show("budgets", coarse(state.diagnosis), () => sections.budgets(state));
  show("levers", state.levers, () => sections.levers(state, toggleChain, ask));
  by("rollouts-count").textContent = sections.countWords(state.lever_counts);
  show("requests", state.requests, () => sections.requests(state));
  show("ledger", state.ledger, () => sections.ledger(state));
  refreshChains(state, get);
  announce(state);
}

function ask(action, lever) {
  confirmAction(action, lever, send, (words) => { by("said").textContent = words; });
}

/** Post an action; throws what the gateway said where it did not happen. */
async function send(asked) {
  const response = await fetch("/rollouts", {
    method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(asked),
  });
  const body = await response.json();
  if (response.ok) return body;
  const said = body.error?.message ?? `status ${response.status}`;
  throw new Error(response.status === 403 ? `${said}: reload the page and enter it` : said);
}

/** Read JSON; throws what the gateway said where it cannot be had. */
async function get(path) {
  const response = await fetch(path, { headers: headers() });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error?.message ?? `status ${response.status}`);
  return body;
}

/** Say moves of levers and replicas to a screen reader; figures that change all the time stay silent. */
function announce(state) {
  const now = new Map([...state.levers.filter((each) => each.state).map((each) => [`lever ${each.name}`, words(each.state)]),
    ...state.fleet.map((each) => [`replica ${each.id}`, each.state])]);
  if (lastStates) {
    const moves = [...now].filter(([name, value]) => lastStates.get(name) !== value).map(([name, value]) => `${name} is ${value}`);
    if (moves.length) {
      by("said").textContent = moves.length > SAID_MAX ? `${count(moves.length, "change")} of levers and replicas` : moves.join(", ");
      rollouts.refresh();
      happened.refresh();
    }
  }
  lastStates = now;
}

function toggleChain(lever) {
  const place = by(`chain-${lever}`);
  place.hidden = !place.hidden;
  by(`chain-button-${lever}`).setAttribute("aria-expanded", String(!place.hidden));
  if (place.hidden) return;
  loadChain(place, lever, get);
}

async function follow(onState) {
  const aborter = new AbortController();
  let silence = setTimeout(() => aborter.abort(), SILENT_MS_MAX);
  try {
    const response = await fetch("/page/events", { headers: headers(), signal: aborter.signal, cache: "no-store" });
    if (response.status === 403) return "forbidden";
    if (!response.ok) return (await response.json()).error?.message ?? `status ${response.status}`;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return "the gateway ended the connection";
      clearTimeout(silence);
      silence = setTimeout(() => aborter.abort(), SILENT_MS_MAX);
      const events = (pending + value).split("\n\n");
      pending = events.pop();
      for (const event of events) {
        if (event.startsWith("event: end")) return "the gateway stopped";
        if (event.startsWith("event: state")) onState(JSON.parse(event.slice(event.indexOf("data: ") + 6)));
      }
    }
  } finally {
    clearTimeout(silence);
    aborter.abort();
  }
}

async function run() {
  let wait = RETRY_MS_MIN;
  for (;;) {
    let why;
    try {
      why = await follow((state) => {
        wait = RETRY_MS_MIN;
        by("token").hidden = true;
        link("live", "live");
        render(state);
      });
    } catch (error) {
      why = error.name === "AbortError" ? "nothing was heard" : "the gateway cannot be reached";
    }
    if (why === "forbidden") {
      link("lost", "needs the admin token");
      await askToken();
      continue;
    }
    link("lost", `${why}: what is shown is old`);
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(RETRY_MS_MAX, 2 * wait);
  }
}

function askToken() {
  sessionStorage.removeItem(TOKEN);
  const form = by("token");
  form.hidden = false;
  by("token-value").focus();
  return new Promise((resolve) => form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, by("token-value").value);
    by("token-value").value = "";
    resolve();
  }, { once: true }));
}

const rollouts = rolloutList(get);
const happened = happenedList(get);
run();
