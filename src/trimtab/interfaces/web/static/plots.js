// Small plots as inline SVG. Each has its figures in words beside it or in its label.

import { h, s, number, share, isKnown } from "./dom.js";

/** One bar of stacked shares; what is not told of the whole is hatched, never left out. */
export function stackedBar(label, parts) {
  const known = parts.filter((part) => isKnown(part.share) && part.share > 0);
  const told = known.reduce((sum, part) => sum + part.share, 0);
  const whole = Math.max(1, told);
  const percent = (value) => `${((100 * value) / whole).toFixed(2)}%`;
  let from = 0;
  const segments = known.map((part) => {
    const at = from;
    from += part.share;
    const inside = part.share / whole;
    return s("svg", { x: percent(at), y: 0, width: percent(part.share), height: 36, overflow: "hidden" },
      s("rect", { class: `phase phase-${part.name}`, width: "100%", height: 36 }, s("title", {}, `${part.name} ${share(part.share)}`)),
      s("rect", { class: "gap", x: 0, width: at ? 2 : 0, height: 36 }),
      inside > 0.09 ? text("on-bar full", `${part.name} ${share(part.share)}`) : null,
      inside > 0.1 ? text("on-bar short", share(part.share)) : null);
  });
  const rest = whole - told;
  const spoken = known.map((part) => `${part.name} ${share(part.share)}`);
  if (rest > 0.005) {
    spoken.push(`not told ${share(rest)}`);
    segments.push(s("svg", { x: percent(told), y: 0, width: percent(rest), height: 36, overflow: "hidden" },
      s("rect", { class: "untold", width: "100%", height: 36, fill: "url(#hatch)" }, s("title", {}, `not told ${share(rest)}`)),
      rest > 0.14 ? text("on-hatch full", `not told ${share(rest)}`) : null));
  }
  return s("svg", { class: "stack", role: "img", "aria-label": `${label}: ${spoken.join(", ")}` },
    s("defs", {}, s("pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("line", { class: "hatching", x1: 0, y1: 0, x2: 0, y2: 8 }))), segments);
}

const text = (kind, said) => s("text", { class: kind, x: "50%", y: 23, "text-anchor": "middle" }, said);

/** How much of something is used, with the share from which it binds marked. */
export function meter(label, used, bindsAt) {
  const mark = 100 * bindsAt;
  return s("svg", { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${share(used)} used` },
    s("rect", { class: "track", x: 0, y: 0, width: 100, height: 8 }),
    isKnown(used) ? s("rect", { class: used >= bindsAt ? "used binds" : "used", x: 0, y: 0, width: 100 * Math.min(1, used), height: 8 }) : null,
    s("line", { class: "limit", x1: mark, x2: mark, y1: 0, y2: 8 }));
}

const W = 320, H = 96, LEFT = 2, TOP = 8, BOTTOM = 14;

function frame(label, spanWords, children) {
  return s("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label },
    s("line", { class: "axis", x1: LEFT, x2: W, y1: H - BOTTOM, y2: H - BOTTOM }),
    children,
    s("text", { class: "tick", x: LEFT, y: H - 3 }, spanWords),
    s("text", { class: "tick", x: W, y: H - 3, "text-anchor": "end" }, "now"));
}

const xOf = (at, n) => LEFT + ((at + 0.5) * (W - LEFT)) / n;

function line(kind, values, top) {
  const y = (value) => H - BOTTOM - ((H - BOTTOM - TOP) * value) / top;
  const runs = [];
  values.forEach((value, at) => {
    if (!isKnown(value)) return;
    const point = [xOf(at, values.length), y(value)];
    if (at > 0 && isKnown(values[at - 1])) runs.at(-1).push(point);
    else runs.push([point]);
  });
  return runs.map((run) => (run.length === 1
    ? s("circle", { class: `point ${kind}`, cx: run[0][0], cy: run[0][1], r: 2.5 })
    : s("polyline", { class: `line ${kind}`, points: run.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" ") })));
}

/** p50 and p95 of a latency by bin. A null bin lies before the start; one without a known value is a gap. */
export function latencyPlot(title, unit, bins, name, spanWords) {
  const p50 = bins.map((bin) => bin?.[name].p50 ?? null);
  const p95 = bins.map((bin) => bin?.[name].p95 ?? null);
  const top = Math.max(...p95.filter(isKnown), 0);
  const n = bins.reduce((sum, bin) => sum + (bin?.[name].n ?? 0), 0);
  const label = top > 0 ? `${title} by bin, highest p95 ${number(top)} ${unit}, n=${n}` : `${title}: ${n ? "zero" : "unknown, no requests"}`;
  const lines = top > 0
    ? [line("p95", p95, top), line("p50", p50, top), s("text", { class: "tick", x: LEFT, y: TOP }, `${number(top)} ${unit}`)]
    : s("text", { class: "tick", x: W / 2, y: H / 2, "text-anchor": "middle" }, "unknown: no requests");
  return h("figure", {}, h("figcaption", {}, title, h("span", { class: "n" }, ` n=${n}`),
    h("span", { class: "key" }, key("p50"), "p50 ", key("p95"), "p95")), frame(label, spanWords, lines));
}

function key(kind) {
  return s("svg", { class: "swatch", viewBox: "0 0 20 8", "aria-hidden": "true" }, s("polyline", { class: `line ${kind}`, points: "0,4 20,4" }));
}

export function countPlot(title, bins, spanWords) {
  const top = Math.max(...bins.map((bin) => bin?.n ?? 0), 1);
  const width = ((W - LEFT) / bins.length) * 0.8;
  const n = bins.reduce((sum, bin) => sum + (bin?.n ?? 0), 0);
  const bars = bins.map((bin, at) => {
    if (!bin) return null;
    const height = ((H - BOTTOM - TOP) * bin.n) / top;
    return s("rect", { class: "count", x: xOf(at, bins.length) - width / 2, y: H - BOTTOM - height, width, height });
  });
  return h("figure", {}, h("figcaption", {}, title, h("span", { class: "n" }, ` n=${n}`)),
    frame(`${title}: ${n}, at most ${top} in a bin`, spanWords, [bars, s("text", { class: "tick", x: LEFT, y: TOP }, String(top))]));
}
