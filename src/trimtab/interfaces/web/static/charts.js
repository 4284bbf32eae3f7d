// Plots over time, drawn by uPlot. Each lives as long as the page and gets new data; its figures also stand in a table.

import { h, isKnown, number } from "./dom.js";

/* global uPlot */

const HEIGHT = 150;
const charts = new Map();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

/**
 * A figure with a plot. `series`: [{ label, values, ink, dash, fill, bars }] over `times` (seconds since 1970), null is a
 * gap; `stacked`: each stands on the one before it. `said`: the plot in words.
 */
export function chart(id, { title, note, unit, times, series, stacked, said }) {
  const shape = JSON.stringify([series.map((each) => each.label), stacked]);
  let found = charts.get(id);
  if (!found || found.shape !== shape) {
    found?.plot?.destroy();
    found = { shape, figure: null, plot: null, values: [], series, unit };
    found.holder = h("div", { class: "holder", role: "img" });
    found.empty = h("p", { class: "empty" }, "unknown: no requests");
    found.note = h("span", { class: "n" });
    found.figure = h("figure", { id }, h("figcaption", {}, title, " ", found.note), found.empty, found.holder);
    charts.set(id, found);
    watchWidth(found);
  }
  // The highest sum is drawn first, so that each layer shows above those that stand on it.
  found.series = stacked ? [...series].reverse() : series;
  found.values = found.series.map((each) => each.values);
  const drawn = stacked ? stack(series.map((each) => each.values)).reverse() : found.values;
  found.data = [times, ...drawn];
  found.note.textContent = note;
  found.holder.setAttribute("aria-label", `${title}: ${said}`);
  const known = found.values.some((values) => values.some(isKnown));
  found.holder.hidden = !known;
  found.empty.hidden = known;
  if (!known) return found.figure;
  if (found.plot) found.plot.setData(found.data);
  else found.plot = new uPlot(options(found), found.data, found.holder);
  return found.figure;
}

/** Sums from the bottom; what is unknown adds nothing where something else is known. */
function stack(layers) {
  const sums = layers[0].map(() => null);
  return layers.map((values) => values.map((value, at) => {
    if (isKnown(value)) sums[at] = (sums[at] ?? 0) + value;
    return sums[at];
  }));
}

function options(found) {
  const ink = colour("soft"), edge = colour("edge"), font = "11px system-ui, sans-serif";
  const axis = { stroke: ink, font, grid: { stroke: edge, width: 1 }, ticks: { stroke: edge, width: 1 } };
  const drawn = found.series.map((each, at) => ({
    label: each.label,
    stroke: colour(each.ink),
    width: 2,
    dash: each.dash,
    fill: each.fill ? colour(each.ink) : undefined,
    paths: each.bars ? uPlot.paths.bars({ size: [0.8, 40] }) : undefined,
    points: { show: !each.bars && !each.fill, size: 4 },
    value: (plot, _, __, index) => (index === null ? "" : valueWords(found.values[at][index], found.unit)),
  }));
  return {
    width: Math.max(200, found.holder.clientWidth || 300),
    height: HEIGHT,
    scales: { y: { range: (_, __, top) => [0, top > 0 ? 1.06 * top : 1] } },
    axes: [
      { ...axis, values: (_, times) => times.map((time) => clock(time).slice(0, 5)), space: 60 },
      { ...axis, values: (_, values) => values.map((value) => number(value)), size: 58, space: 28 },
    ],
    series: [{ value: (_, time) => (isKnown(time) ? clock(time) : "") }, ...drawn],
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    legend: { live: true },
  };
}

const valueWords = (value, unit) => (isKnown(value) ? `${number(value)} ${unit}`.trim() : "unknown");

function watchWidth(found) {
  new ResizeObserver(() => {
    const width = found.holder.clientWidth;
    if (found.plot && width > 0 && width !== found.plot.width) found.plot.setSize({ width, height: HEIGHT });
  }).observe(found.holder);
}

// Colours are read when a plot is made: another scheme makes them anew.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const found of charts.values()) {
    if (!found.plot) continue;
    found.plot.destroy();
    found.plot = new uPlot(options(found), found.data, found.holder);
  }
});
