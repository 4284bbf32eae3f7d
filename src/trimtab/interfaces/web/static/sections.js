// One function per section: from its part of the state to elements.

import { h, s, table, words, unknown, number, share, ms, count, duration, ago, isKnown, UNKNOWN } from "./dom.js";
import { leverActions, freezeAction } from "./actions.js";
import { stackedBar, meter } from "./plots.js";
import { chart, clock } from "./charts.js";

const BINDS_AT = 0.95;
const RUNNING = new Set(["canary", "ramping", "proving"]);

const SHAPES = {
  pass: () => [s("circle", { cx: 8, cy: 8, r: 7 }), s("path", { class: "mark", d: "M4.5 8.2 7 10.8 11.6 5.6" })],
  fail: () => [s("rect", { x: 1, y: 1, width: 14, height: 14 }), s("path", { class: "mark", d: "M5 5 11 11M11 5 5 11" })],
  hold: () => [s("path", { d: "M8 .8 15.2 8 8 15.2.8 8Z" }), s("path", { class: "mark", d: "M6.4 5.4V10.6M9.6 5.4V10.6" })],
  error: () => [s("path", { d: "M8 1 15.4 14.6H.6Z" }), s("path", { class: "mark", d: "M8 5.6V10M8 11.8V12.4" })],
};

/** A verdict by shape and word; colour only repeats it. */
export const verdict = (value) => h("span", { class: `verdict ${value}` },
  s("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, SHAPES[value]()), value);

const state = (value) => h("span", { class: `state is-${value}` }, words(value));
const listed = (name, items) => (items.length ? [[name, items.join(", ")]] : []);
const list = (items) => (items.length ? items.join(", ") : "none");

export function runFacts({ run }) {
  const facts = [["model", run.model], ["machine", run.machine], ["version", run.version], ["run", run.id], ["up", duration(run.up_s)]];
  if (run.stage) facts.push(["stage", run.stage]);
  return [h("dl", {}, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    run.draining ? h("p", { class: "notice" }, "Draining: running requests may finish, new ones are refused.") : null];
}

export function fleet({ fleet: replicas }) {
  if (!replicas.length) return [h("p", { class: "empty" }, "No replicas.")];
  const heads = [["replica"], ["state"], ["role"], ["revision"], ["speculation"], ["running", "num"], ["waiting", "num"], ["tokens outstanding", "num wide-cell"], ["cache", "num wide-cell"]];
  const rows = replicas.map((replica) => {
    const prefill = replica.prefill_tokens_outstanding, decode = replica.decode_tokens_outstanding;
    const why = [replica.reason, replica.crashes ? count(replica.crashes, "crash").replace("crashs", "crashes") : ""].filter(Boolean).join("; ");
    return [
      replica.id,
      [state(replica.state), why ? h("small", {}, ` ${why}`) : null],
      replica.role,
      [h("code", {}, replica.revision), replica.settings ? h("small", {}, ` ${replica.settings}`) : null],
      replica.speculation === "off" ? "off" : `on: ${words(replica.speculation)}`,
      isKnown(replica.running) ? `${replica.running} of ${count(replica.slots, "slot")}` : unknown(),
      isKnown(replica.waiting) ? String(replica.waiting) : unknown(),
      isKnown(prefill) ? [number(prefill + decode), h("small", {}, ` ${number(prefill)} prefill, ${number(decode)} decode`)] : unknown(),
      cacheWords(replica),
    ];
  });
  return [table("Replicas as the gateway counts them at this moment", heads, rows),
    h("p", { class: "basis" }, "Counted by the gateway at this moment; waiting is before the first token, output still expected is an estimate. Reused is what engines reported.")];
}

function cacheWords({ reused, kv_used_share: used }) {
  const kv = isKnown(used) ? h("small", {}, ` KV ${share(used)} in use`) : null;
  return isKnown(reused.share)
    ? [`${share(reused.share)} reused`, h("small", {}, ` of prompt tokens, n=${reused.n} over ${duration(reused.window_s)}`), kv]
    : [unknown(), kv];
}

export function traffic({ traffic: plan }, ask) {
  const proving = plan.proving;
  const facts = [["policy", words(plan.policy)]];
  facts.push(["being proven", proving
    ? [h("strong", {}, proving.lever), ` on ${share(proving.share)} of sessions, ${words(proving.comparison)}`,
      proving.replicas.length ? `, on ${proving.replicas.join(", ")}` : "", proving.cuts.length ? `, only ${proving.cuts.join(", ")}` : ""]
    : "nothing"]);
  facts.push(["adopted", plan.adopted.length ? h("ul", { class: "plain" }, plan.adopted.map((lever) => h("li", {}, h("strong", {}, lever.lever),
    ` for ${lever.kept.length ? lever.kept.join(", ") : "all traffic"}`, lever.replicas.length ? ` on ${lever.replicas.join(", ")}` : "",
    lever.held_off_by.length ? h("em", {}, `; held off now by ${lever.held_off_by.join(", ")}`) : null))) : "nothing"]);
  return [h("p", { class: "lead" }, plan.words), definitions(facts),
    plan.frozen ? h("p", { class: "notice" }, `Frozen: nothing is promoted (${plan.frozen_because}). Taking back is still allowed.`) : null,
    freezeAction(plan.frozen, ask)];
}

const definitions = (facts) => h("dl", { class: "definitions" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

const windowWords = (found) => `n=${found.n} ${found.n === 1 ? "request" : "requests"} over ${duration(found.window_s)}, made ${ago(found.made_ago_s)}`;
const none = () => h("p", { class: "empty" }, "Unknown: no diagnosis was made yet. One is made after a minute with at least 20 requests.");

export function budgets({ diagnosis }) {
  if (!diagnosis) return [none()];
  return [h("ul", { class: "plain meters" }, diagnosis.budgets.map((use) => h("li", {},
    h("div", { class: "meter-head" }, h("span", {}, use.budget), isKnown(use.used_share)
      ? h("strong", {}, `${share(use.used_share)} used${use.used_share >= BINDS_AT ? ", binds" : ""}`) : unknown()),
    meter(use.budget, use.used_share, BINDS_AT),
    h("small", {}, use.basis, readingWords(use.reading))))),
  h("p", { class: "basis" }, `${windowWords(diagnosis)}. The line marks ${share(BINDS_AT)}, from which a budget binds.`)];
}

function readingWords(reading) {
  if (!reading) return "";
  if (reading.is === "unknown") return ` (${reading.reason})`;
  const n = isKnown(reading.samples) ? `, n=${reading.samples}` : "";
  return ` (over ${duration(Math.max(0, reading.window.end_s - reading.window.start_s))}${n}, from ${reading.source})`;
}

export function diagnosis({ diagnosis: found }) {
  if (!found) return [none()];
  const dominant = found.dominant_phase && found.dominant_resource
    ? [h("strong", {}, words(found.dominant_phase)), " is bound by ", h("strong", {}, words(found.dominant_resource))]
    : unknown("what binds cannot be told");
  const heads = [["phase"], ["bound by"], ["share of time", "num"], ["mean", "num"], ["resource used", "num"], ["n", "num"], ["because", "wide-cell"]];
  const rows = found.phases.map((phase) => [
    [s("svg", { class: "chip", viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { class: `phase phase-${phase.phase}`, width: 10, height: 10 })), " ", phase.phase],
    phase.resource ? words(phase.resource) : unknown(),
    isKnown(phase.share) ? share(phase.share) : unknown(), isKnown(phase.mean_ms) ? ms(phase.mean_ms) : unknown(),
    isKnown(phase.used_share) ? share(phase.used_share) : unknown(), String(phase.samples), h("small", {}, phase.because),
  ]);
  return [h("p", { class: "lead" }, dominant, `, confidence ${share(found.confidence)}`),
    h("p", { class: "basis" }, `Diagnosis of ${found.scope}: ${windowWords(found)}. Id ${found.id}.`),
    stackedBar("Share of request time by phase", found.phases.map((phase) => ({ name: phase.phase, share: phase.share }))),
    table("What binds each phase", heads, rows),
    findings([["For it", found.supports], ["Against it", found.contradicts], ["Unknown", found.unknown]])];
}

function findings(groups) {
  const said = groups.filter(([, items]) => items.length);
  if (!said.length) return null;
  const total = said.map(([name, items]) => `${items.length} ${name.toLowerCase()}`).join(", ");
  return h("details", { id: "findings" }, h("summary", {}, `Statements: ${total}`), said.map(([name, items]) => [
    h("h3", {}, name), h("ul", {}, items.map((item) => h("li", {}, item.text,
      item.evidence.length ? h("small", {}, ` [${item.evidence.join(", ")}]`) : null)))]));
}

function interval(result) {
  if (!result.interval) return "interval unknown";
  const end = (value) => (isKnown(value) ? number(value) : "open");
  return `${share(result.interval.level)} interval ${end(result.interval.low)} to ${end(result.interval.high)}`;
}

function gates(lever) {
  if (!lever.results.length) return h("p", { class: "empty" }, "No look yet: every gate is unknown.");
  const counts = ["pass", "fail", "hold", "error"].map((name) => [name, lever.results.filter((result) => result.verdict === name).length]);
  const heads = [["gate"], ["verdict"], ["cut"], ["candidate against baseline", "num wide-cell"], ["n", "num"], ["why", "wide-cell"]];
  const rows = lever.results.map((result) => [
    [words(result.gate), result.required ? null : h("small", {}, " veto only")],
    verdict(result.verdict), result.cut,
    [isKnown(result.value) ? number(result.value) : unknown(), h("small", {}, ` ${result.metric}, ${interval(result)}, margin ${share(result.margin)}`)],
    [`${result.n_candidate} / ${result.n_baseline}`, h("small", {}, ` ${count(result.n_units, "unit")}`)],
    h("small", {}, result.reason),
  ]);
  return [h("p", { class: "tally" }, `Look ${lever.look}: `, lever.look_verdict ? verdict(lever.look_verdict) : unknown(),
    h("span", { class: "basis" }, ` of ${count(lever.results.length, "gate")}: ${counts.filter(([, n]) => n).map(([name, n]) => `${n} ${name}`).join(", ")}`)),
  h("details", { id: `gates-${lever.name}`, open: true }, h("summary", {}, "Gates of this look"),
    table(`Gates of ${lever.name}; n is candidate against baseline`, heads, rows),
    h("p", { class: "basis" }, "n is candidate / baseline requests of the whole comparison. Rates are differences, everything else is candidate over baseline."))];
}

const effectWords = (effect) => `${effect.metric}, ${effect.cut}: ${number(effect.ratio)} of the baseline (`
  + `${isKnown(effect.low) && isKnown(effect.high) ? `interval ${number(effect.low)} to ${number(effect.high)}` : "interval unknown"}, `
  + `n=${effect.n_candidate} against ${effect.n_baseline}; predicted ${number(effect.predicted_ratio)})`;

function proposed(lever, onChain, ask) {
  return h("article", { class: "lever", "aria-label": lever.name },
    h("div", { class: "lever-head" }, h("h3", {}, h("button", {
      id: `chain-button-${lever.name}`, type: "button", "aria-expanded": "false", "aria-controls": `chain-${lever.name}`, onclick: () => onChain(lever.name),
    }, lever.name, h("span", { class: "hint" }, "chain"))), state(lever.state), h("span", {}, `${RUNNING.has(lever.state) ? "" : "last slice: "}${share(lever.share)} of sessions`)),
    leverActions(lever, ask),
    lever.due ? h("p", { class: "notice" }, lever.due) : null,
    h("div", { id: `chain-${lever.name}`, class: "chain", role: "region", tabindex: 0, "aria-label": `Chain of ${lever.name}`, hidden: true }),
    definitions([["premise", lever.premise || unknown()], ["last move", lever.reason || unknown("it did not move yet")],
      ...listed("kept for", lever.kept), ...listed("refused for", Object.entries(lever.refused).map(([cut, why]) => `${cut} (${why})`)),
      ...listed("held off by", lever.held_off_by),
      ...listed("switched off by", lever.switches_off), ["back by", lever.reverse || unknown()], ...listed("owner", [lever.owner].filter(Boolean)),
      ["effect", lever.effects.length ? h("ul", { class: "plain" }, lever.effects.map((effect) => h("li", {}, effectWords(effect)))) : unknown("not measured")]]),
    budgetCourse(lever), grid(lever), gates(lever));
}

/** The four budgets as they were before the lever, as predicted with it, as they were after it, and in the latest diagnosis. */
function budgetCourse(lever) {
  if (!lever.budgets.length) return null;
  const cell = (used) => (isKnown(used) ? [meter("", used, BINDS_AT), share(used)] : unknown());
  return h("details", { id: `budgets-${lever.name}` }, h("summary", {}, "Budgets before, predicted, after, now"),
    table(`Used shares of the budgets around ${lever.name}`, [["budget"], ["before"], ["predicted"], ["after"], ["now"]],
      lever.budgets.map((each) => [each.budget, cell(each.before), cell(each.predicted), cell(each.after), cell(each.now)])));
}

/** Gates as a grid: a row per cut, a column per metric; in a cell the worst of its verdicts with its value. */
function grid(lever) {
  const cuts = [...new Set(lever.results.map((result) => result.cut))];
  const metrics = [...new Set(lever.results.map((result) => result.metric))];
  if (cuts.length < 2) return null;
  const rows = cuts.map((cut) => [cut, ...metrics.map((metric) => {
    const found = lever.results.filter((result) => result.cut === cut && result.metric === metric);
    if (!found.length) return h("span", { class: "empty" }, "not asked");
    const worst = ["fail", "error", "hold", "pass"].find((name) => found.some((result) => result.verdict === name));
    const value = found.find((result) => isKnown(result.value))?.value;
    return [verdict(worst), h("small", {}, isKnown(value) ? number(value) : UNKNOWN)];
  })]);
  return h("div", { class: "grid", id: `grid-${lever.name}` },
    table(`Worst verdict of ${lever.name} by cut and metric`, [["cut"], ...metrics.map((metric) => [words(metric)])], rows));
}

/** How many rollouts there are, by state. */
export function countWords(counts) {
  const total = Object.values(counts).reduce((sum, n) => sum + n, 0);
  return total ? `${count(total, "rollout")}: ${Object.entries(counts).map(([name, n]) => `${n.toLocaleString("en")} ${words(name)}`).join(", ")}` : "No rollout yet";
}

export function levers({ levers: all }, onChain, ask) {
  const known = all.filter((lever) => lever.state);
  const others = all.filter((lever) => !lever.state);
  const heads = [["lever"], ["premise"], ["predicted gain", "num"], ["because", "wide-cell"]];
  const rows = others.map((lever) => [lever.name, [h("strong", {}, lever.premise_holds ? "holds" : "does not hold"), h("small", {}, ` ${lever.premise}`)],
    isKnown(lever.gain_share) ? share(lever.gain_share) : unknown(), h("small", {}, lever.reason)]);
  return [known.length ? known.map((lever) => proposed(lever, onChain, ask)) : h("p", { class: "empty" }, "No lever was proposed."),
    others.length ? h("details", { id: "assessed", open: !known.length }, h("summary", {}, `Assessed with the latest diagnosis and not proposed: ${others.length}`),
      table("Levers that were assessed and not proposed", heads, rows)) : null];
}

const quantiles = (latency) => (latency.n ? [`${ms(latency.p50)} / ${ms(latency.p95)}`, h("small", {}, ` n=${latency.n}`)] : unknown());

export function requests({ requests: seen, at_s: at }) {
  const heads = [["window"], ["requests", "num"], ["ended well", "num"], ["ended otherwise"], ["TTFT p50 / p95", "num"], ["TPOT p50 / p95", "num"]];
  const rows = seen.windows.map((window) => [
    `last ${duration(window.window_s)}`, [String(window.n), window.complete ? null : h("small", {}, " older ones were dropped")],
    String(window.ok), list(Object.entries(window.ended).map(([why, n]) => `${n} ${words(why)}`)), quantiles(window.ttft_ms), quantiles(window.tpot_ms),
  ]);
  return [table("Requests that finished in the last minutes", heads, rows), h("div", { class: "plots" }, plots(at, seen)), figures(at, seen),
    h("p", { class: "basis" }, `Requests that finished; bins of ${duration(seen.bin_s)}, the last one is not over. TTFT is of streams only.`)];
}

const PHASES = ["queue", "prefill", "transfer", "decode"];

function plots(at, { bins, bin_s: width }) {
  const times = bins.map((bin) => at - bin.ago_s);
  const sum = (of) => bins.reduce((total, bin) => total + of(bin), 0);
  const highest = (of) => bins.reduce((top, bin) => Math.max(top, of(bin) ?? 0), 0);
  const n = sum((bin) => bin.n), phases = sum((bin) => bin.phases_ms.n);
  const last = bins.findLast((bin) => bin.phases_ms.n);
  const latency = (name, title) => {
    const known = sum((bin) => bin[name].n);
    return chart(`plot-${name}`, {
      title, note: `ms, n=${known}`, unit: "ms", times, said: `highest p95 ${ms(highest((bin) => bin[name].p95) || null)}, n=${known}`,
      series: [{ label: "p50", ink: "accent", values: bins.map((bin) => bin[name].p50) }, { label: "p95", ink: "warm", dash: [6, 4], values: bins.map((bin) => bin[name].p95) }],
    });
  };
  return [
    chart("plot-phases", {
      title: "Time of a request by phase", note: `mean ms, n=${phases}`, unit: "ms", times, stacked: true,
      said: `mean of the last bin with requests: ${PHASES.map((name) => `${name} ${ms(last?.phases_ms[name])}`).join(", ")}, n=${phases}`,
      series: PHASES.map((name) => ({ label: name, ink: name, fill: true, values: bins.map((bin) => bin.phases_ms[name]) })),
    }),
    latency("ttft_ms", "TTFT"), latency("tpot_ms", "TPOT"),
    chart("plot-count", {
      title: `Requests per ${duration(width)}`, note: `n=${n}`, unit: "", times, said: `at most ${highest((bin) => bin.n)} in a bin, n=${n}`,
      series: [{ label: "requests", ink: "accent", fill: true, bars: true, values: n ? bins.map((bin) => bin.n) : bins.map(() => null) }],
    }),
  ];
}

/** The figures of the plots, for whoever reads without seeing them. */
function figures(at, { bins }) {
  const heads = [["from"], ["requests", "num"], ["TTFT p50 / p95", "num"], ["TPOT p50 / p95", "num"], ...PHASES.map((name) => [`${name} ms`, "num"])];
  const rows = bins.map((bin) => [clock(at - bin.ago_s), String(bin.n), quantiles(bin.ttft_ms), quantiles(bin.tpot_ms),
    ...PHASES.map((name) => (isKnown(bin.phases_ms[name]) ? number(bin.phases_ms[name]) : unknown()))]);
  return h("details", { id: "figures" }, h("summary", {}, "Figures of these plots"), table("Figures of the plots by bin", heads, rows));
}

export function ledger({ ledger: file }) {
  const health = file.healthy ? h("strong", { class: "good" }, "healthy: every event so far was written")
    : h("strong", { class: "bad" }, `not healthy: ${file.unhealthy_reason ?? UNKNOWN}. Promotions are stopped, traffic goes on`);
  return [definitions([["file", h("code", {}, file.path)], ["events", isKnown(file.events) ? count(file.events, "event") : unknown(file.read_error)],
    ["lost", isKnown(file.lost) ? count(file.lost, "event") : unknown(file.read_error)], ["writing", health]])];
}
