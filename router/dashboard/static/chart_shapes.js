/** The SVG shapes of a chart. A plot is `{minutes, series, x, y, width, height, ticks}`; see chart.js. */

import { minuteOfDay } from "./format.js";
import { knownRuns, quarterIndexes } from "./chart_scale.js";
import { svgElement } from "./dom.js";

export function axes(plot, format) {
  const { ticks, x, y, left, right, bottom, minutes } = plot;
  const rows = ticks.flatMap((tick) => [
    svgElement("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
    svgElement("text", { class: "tick", x: left - 6, y: y(tick), dy: "0.32em", "text-anchor": "end" }, format(tick)),
  ]);
  const columns = quarterIndexes(minutes).map((index) =>
    svgElement(
      "text",
      { class: "tick", x: clamp(x(index), left + 14, right - 14), y: bottom + 16, "text-anchor": "middle" },
      minuteOfDay(minutes[index].at),
    ),
  );
  return svgElement("g", { "aria-hidden": "true" }, rows, columns);
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

export function stackedBars(plot) {
  const { minutes, series, x, y, barWidth } = plot;
  const bars = [];
  minutes.forEach((minute, index) => {
    let base = 0;
    for (const { value, tone } of series) {
      const amount = value(minute) ?? 0;
      if (amount <= 0) continue;
      const top = y(base + amount);
      bars.push(
        svgElement("rect", {
          class: `bar tone-${tone}`,
          x: x(index) - barWidth / 2,
          y: top,
          width: barWidth,
          height: Math.max(y(base) - top, 0.5),
        }),
      );
      base += amount;
    }
  });
  return svgElement("g", {}, bars);
}

/** One line for each series, with gaps where values are unknown; a lone value is a dot. */
export function lines(plot) {
  return svgElement(
    "g",
    {},
    plot.series.map((series) => line(plot, series)),
  );
}

function line(plot, { value, tone, dashed, area }) {
  const { minutes, x, y, bottom } = plot;
  const values = minutes.map(value);
  const shapes = knownRuns(values).flatMap((run) => {
    const points = run.map((index) => `${x(index).toFixed(1)},${y(values[index]).toFixed(1)}`);
    if (run.length === 1) {
      return [svgElement("circle", { class: `point tone-${tone}`, cx: x(run[0]), cy: y(values[run[0]]), r: 2 })];
    }
    const path = svgElement("polyline", {
      class: `line tone-${tone}${dashed ? " dashed" : ""}`,
      points: points.join(" "),
    });
    if (!area) return [path];
    const ends = [`${x(run.at(-1)).toFixed(1)},${bottom}`, `${x(run[0]).toFixed(1)},${bottom}`];
    return [svgElement("polygon", { class: `area tone-${tone}`, points: [...points, ...ends].join(" ") }), path];
  });
  return svgElement("g", {}, shapes);
}

/** A vertical line at a minute, with a dot on each line of the chart. */
export function cursor(plot, index) {
  const { minutes, series, x, y, top, bottom, stacked } = plot;
  const dots = stacked
    ? []
    : series.flatMap(({ value, tone }) => {
        const at = value(minutes[index]);
        return at === null || at === undefined
          ? []
          : [svgElement("circle", { class: `point tone-${tone}`, cx: x(index), cy: y(at), r: 3.5 })];
      });
  return svgElement(
    "g",
    { class: "cursor" },
    svgElement("line", { x1: x(index), x2: x(index), y1: top, y2: bottom }),
    dots,
  );
}
