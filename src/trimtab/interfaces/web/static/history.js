// What lies behind the present state, read only when somebody opens it: all rollouts, and what happened.

import { h, table, words, share, count } from "./dom.js";
import { loadChain } from "./chains.js";
import { clock } from "./charts.js";

const TEXT_MAX = 240;
const by = (id) => document.getElementById(id);
const day = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 10);
const moment = (seconds) => h("time", { datetime: new Date(1000 * seconds).toISOString() }, `${day(seconds)} ${clock(seconds)}`);

/** The beginning of what an event says; the whole stands in the chain of its lever. */
function summary(text) {
  const [first] = text.split("\n");
  return first.length <= TEXT_MAX ? first : `${first.slice(0, TEXT_MAX).replace(/\s+\S*$/, "")} …`;
}

/** The list of all rollouts, by state and part of a name, a page at a time. */
export function rolloutList(get) {
  let offset = 0, asked = 0;
  const load = async () => {
    const mine = ++asked;
    const query = new URLSearchParams({ state: by("rollouts-state").value, name: by("rollouts-name").value.trim(), offset });
    try {
      const found = await get(`/page/levers?${query}`);
      if (mine === asked) draw(found);
    } catch (error) {
      by("rollouts-list").replaceChildren(h("p", { class: "notice" }, `The rollouts cannot be read: ${error.message}`));
    }
  };
  const draw = (found) => {
    const last = found.offset + found.rows.length;
    const heads = [["lever"], ["state"], ["share", "num"], ["moved"], ["because", "wide-cell"]];
    const rows = found.rows.map((row) => [
      h("button", { type: "button", class: "open", "aria-controls": "rollouts-chain", onclick: () => openChain(row.name, get) }, row.name),
      [h("span", { class: `state is-${row.state}` }, words(row.state)), row.due ? h("small", {}, " to verify again") : null],
      share(row.share), moment(row.moved_at_s), h("small", {}, row.reason || "proposed")]);
    by("rollouts-list").replaceChildren(
      h("p", { class: "basis", role: "status" }, found.rows.length ? `${found.offset + 1} to ${last} of ${count(found.total, "rollout")}` : "No rollout is like that."),
      found.rows.length ? table("Rollouts, the latest move first", heads, rows) : "");
    by("rollouts-newer").disabled = found.offset === 0;
    by("rollouts-older").disabled = last >= found.total;
  };
  const turn = (by_) => { offset = Math.max(0, offset + by_); load(); };
  const anew = () => { offset = 0; load(); };
  by("rollouts-newer").addEventListener("click", () => turn(-100));
  by("rollouts-older").addEventListener("click", () => turn(100));
  by("rollouts-state").addEventListener("change", anew);
  by("rollouts-name").addEventListener("input", anew);
  by("rollouts-find").addEventListener("submit", (event) => { event.preventDefault(); anew(); });
  by("all-rollouts").addEventListener("toggle", () => { if (by("all-rollouts").open) load(); });
  return { refresh: () => { if (by("all-rollouts").open) load(); } };
}

function openChain(lever, get) {
  const place = by("rollouts-chain");
  place.hidden = false;
  place.setAttribute("aria-label", `Chain of ${lever}`);
  by("rollouts-chain-name").textContent = `Chain of ${lever}`;
  loadChain(place, lever, get);
  place.focus();
}

/** Decisions and incidents in words, the newest first. */
export function happenedList(get) {
  let oldest = null;
  const load = async (earlier) => {
    try {
      const found = await get(`/page/happened${earlier && oldest !== null ? `?before=${oldest}` : ""}`);
      const rows = found.map((each) => h("li", {}, moment(each.at_s), " ", h("span", { class: "kind" }, words(each.kind)), " ", summary(each.text)));
      if (earlier) by("happened-list").append(...rows);
      else by("happened-list").replaceChildren(...rows);
      if (found.length) oldest = found.at(-1).seq;
      by("happened-earlier").disabled = !found.length;
      by("happened-none").hidden = by("happened-list").childElementCount > 0;
    } catch (error) {
      by("happened-list").replaceChildren(h("li", { class: "notice" }, `The ledger cannot be read: ${error.message}`));
    }
  };
  by("happened-earlier").addEventListener("click", () => load(true));
  by("what-happened").addEventListener("toggle", () => { if (by("what-happened").open) load(false); });
  // Whoever reads further back is not thrown to the top by news.
  return { refresh: () => { if (by("what-happened").open && by("happened-list").childElementCount <= 50) load(false); } };
}
