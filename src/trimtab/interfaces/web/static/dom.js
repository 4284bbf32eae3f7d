// Elements from values: text always becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  const wanted = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...wanted);
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A table that turns into cards on a narrow screen; roles are said because CSS display would drop them. */
export function table(caption, heads, rows) {
  return h("table", { role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" },
      heads.map(([head, kind]) => h("th", { role: "columnheader", scope: "col", class: kind }, head)))),
    h("tbody", { role: "rowgroup" }, rows.map((cells) => h("tr", { role: "row" },
      cells.map((cell, at) => h(at ? "td" : "th", {
        role: at ? "cell" : "rowheader", scope: at ? null : "row", class: heads[at][1], "data-head": heads[at][0],
      }, h("span", { class: "cell" }, cell)))))));
}

export const UNKNOWN = "unknown";
const isKnown = (value) => value !== null && value !== undefined;

export const words = (name) => String(name).replaceAll("_", " ");
export const unknown = (why) => h("span", { class: "unknown" }, why ? `${UNKNOWN}: ${why}` : UNKNOWN);

export function number(value, digits = 3) {
  if (!isKnown(value)) return UNKNOWN;
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}
export const share = (value) => {
  if (!isKnown(value)) return UNKNOWN;
  const percent = 100 * value;
  return `${percent !== 0 && Math.abs(percent) < 10 ? Number(percent.toFixed(1)) : Math.round(percent)}%`;
};
export const ms = (value) => (isKnown(value) ? `${number(value)} ms` : UNKNOWN);
export const count = (value, noun) => `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Number((seconds / 3600).toFixed(1))} h` : `${Math.round(seconds / 86400)} days`;
}
/** How long ago, coarsely, so that what is read aloud or focused does not change every second. */
export const ago = (seconds) => (seconds < 10 ? "just now" : seconds < 60 ? "less than a minute ago" : `${duration(seconds)} ago`);
export { isKnown };
