// Bars as inline SVG. Each has its figures in words beside it or in its label.

import { s, share, isKnown } from "./dom.js";

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
