/**
 * A chart of the last hour: a figure with a legend, an SVG, and the same figures as a table.
 *
 * The pointer or the arrow keys select a minute, whose values replace the totals in the legend.
 */

import { linearScale, linearTicks, logScale, logTicks } from "./chart_scale.js";
import { axes, cursor, lines, stackedBars } from "./chart_shapes.js";
import { element, setText, svgElement } from "./dom.js";
import { minuteOfDay } from "./format.js";

const HEIGHT = 168;
const MARGIN = { top: 10, right: 6, bottom: 24, left: 46 };

/**
 * `definition`: `{id, title, unit, series, format, axisFormat, total, kind, empty}`. `series` may be a function of the minutes. `kind` is "bars" (stacked), "lines", "log" (lines on a
 * logarithmic axis) or "share" (lines from 0 to 1). A series is `{label, tone, value(minute), dashed, area}`;
 * `total(minutes, series)` is what the legend shows while no minute is selected.
 */
export class Chart {
  #definition;
  #minutes = [];
  #selected = null;
  #width = 0;
  #svg = svgElement("svg", { height: HEIGHT, "aria-hidden": "true", focusable: "false" });
  #when = element("span", { class: "when muted" });
  #series = [];
  #legend = element("ul", { class: "legend" });
  #legendValues = [];
  #surface;
  #table;

  constructor(parent, definition) {
    this.#definition = definition;
    this.#surface = this.#buildSurface();
    this.#table = element(
      "details",
      { class: "data", toggle: () => this.#fillTable() },
      element("summary", {}, "As a table"),
    );
    parent.append(this.#buildFigure());
    this.#setSeries();
    new ResizeObserver(([entry]) => this.#resize(Math.floor(entry.contentRect.width))).observe(this.#surface);
  }

  update(minutes) {
    const chosen = this.#minutes[this.#selected]?.at;
    this.#minutes = minutes;
    this.#setSeries();
    // The selection stays at its minute while the hour moves on.
    const index = minutes.findIndex(({ at }) => at === chosen);
    this.#selected = index < 0 ? null : index;
    this.#draw();
    this.#fillTable();
  }

  #buildFigure() {
    const { id, title } = this.#definition;
    const heading = element("figcaption", {}, element("h3", { id: `chart-${id}` }, title), this.#when);
    return element(
      "figure",
      { class: "card chart", id: `figure-${id}` },
      heading,
      this.#legend,
      this.#surface,
      this.#table,
    );
  }

  #setSeries() {
    const { series } = this.#definition;
    const wanted = typeof series === "function" ? series(this.#minutes) : series;
    const isSame =
      wanted.length === this.#series.length && wanted.every(({ label }, index) => label === this.#series[index].label);
    this.#series = wanted;
    if (isSame) return;
    this.#legendValues = wanted.map(() => element("span", { class: "legend-value" }));
    this.#legend.replaceChildren(
      ...wanted.map(({ label, tone, dashed }, index) => {
        const look = `swatch tone-${tone}${dashed ? " dashed" : ""}`;
        const swatch = element("span", { class: look, "aria-hidden": "true" });
        return element("li", {}, swatch, element("span", {}, label), " ", this.#legendValues[index]);
      }),
    );
  }

  #buildSurface() {
    return element(
      "div",
      {
        class: "surface",
        tabindex: "0",
        role: "slider",
        "aria-labelledby": `chart-${this.#definition.id}`,
        "aria-valuemin": "0",
        "aria-valuemax": "59",
        "aria-valuenow": "59",
        "aria-valuetext": "no data yet",
        pointermove: (event) => this.#select(this.#indexAt(event.offsetX)),
        pointerleave: () => this.#select(null),
        blur: () => this.#select(null),
        keydown: (event) => this.#onKey(event),
      },
      this.#svg,
    );
  }

  #onKey(event) {
    const last = this.#minutes.length - 1;
    const from = this.#selected ?? last + (event.key === "ArrowLeft" ? 1 : 0);
    const targets = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, Escape: null };
    if (!(event.key in targets) || last < 0) return;
    event.preventDefault();
    const target = targets[event.key];
    this.#select(target === null ? null : Math.min(Math.max(target, 0), last));
  }

  #indexAt(offset) {
    const share = (offset - MARGIN.left) / Math.max(this.#width - MARGIN.left - MARGIN.right, 1);
    const index = Math.floor(share * this.#minutes.length);
    return index >= 0 && index < this.#minutes.length ? index : null;
  }

  #select(index) {
    if (index === this.#selected) return;
    this.#selected = index;
    this.#draw();
  }

  #resize(width) {
    if (width === this.#width) return;
    this.#width = width;
    this.#draw();
  }

  #draw() {
    this.#showLegend();
    if (!this.#minutes.length || this.#width < 80) return;
    const plot = this.#plot();
    const shapes = [
      axes(plot, this.#definition.axisFormat ?? this.#definition.format),
      plot.stacked ? stackedBars(plot) : lines(plot),
    ];
    if (this.#selected !== null) shapes.push(cursor(plot, this.#selected));
    if (plot.isEmpty)
      shapes.push(
        svgElement(
          "text",
          {
            class: "no-data",
            x: (plot.left + plot.right) / 2,
            y: (plot.top + plot.bottom) / 2,
            "text-anchor": "middle",
          },
          this.#definition.empty ?? "No requests in the last hour",
        ),
      );
    this.#svg.setAttribute("width", this.#width);
    this.#svg.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    this.#svg.replaceChildren(...shapes);
  }

  #plot() {
    const { kind } = this.#definition;
    const series = this.#series;
    const minutes = this.#minutes;
    const [left, right, top, bottom] = [MARGIN.left, this.#width - MARGIN.right, MARGIN.top, HEIGHT - MARGIN.bottom];
    const slot = (right - left) / minutes.length;
    const { ticks, y, isEmpty } = vertical(kind, minutes, series, [bottom, top]);
    return {
      minutes,
      series,
      ticks,
      y,
      isEmpty,
      left,
      right,
      top,
      bottom,
      stacked: kind === "bars",
      x: (index) => left + (index + 0.5) * slot,
      barWidth: Math.max(slot - 1.5, 1),
    };
  }

  #showLegend() {
    const { format, total, unit } = this.#definition;
    const series = this.#series;
    const minute = this.#minutes[this.#selected];
    const values = series.map((one) => format(minute ? one.value(minute) : total(this.#minutes, one)));
    values.forEach((text, index) => setText(this.#legendValues[index], text));
    setText(this.#when, minute ? minuteOfDay(minute.at) : unit);
    const when = minute ? minuteOfDay(minute.at) : "The last hour";
    this.#surface.setAttribute("aria-valuemax", Math.max(this.#minutes.length - 1, 0));
    this.#surface.setAttribute("aria-valuenow", this.#selected ?? Math.max(this.#minutes.length - 1, 0));
    this.#surface.setAttribute(
      "aria-valuetext",
      `${when}: ${series.map(({ label }, index) => `${label} ${values[index]}`).join(", ")}`,
    );
  }

  #fillTable() {
    if (!this.#table.open) return;
    const { format, title } = this.#definition;
    const series = this.#series;
    const head = element(
      "tr",
      {},
      element("th", { scope: "col" }, "Minute"),
      series.map(({ label }) => element("th", { scope: "col", class: "number" }, label)),
    );
    const rows = this.#minutes.map((minute) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, minuteOfDay(minute.at)),
        series.map(({ value }) => element("td", { class: "number" }, format(value(minute)))),
      ),
    );
    const table = element(
      "table",
      { class: "plain" },
      element("caption", { class: "visually-hidden" }, title),
      element("thead", {}, head),
      element("tbody", {}, rows),
    );
    const scroller = element(
      "div",
      { class: "scroller", tabindex: "0", role: "region", "aria-label": `${title}, as a table` },
      table,
    );
    this.#table.replaceChildren(this.#table.firstElementChild, scroller);
  }
}

function vertical(kind, minutes, series, range) {
  if (kind === "share") {
    const known = minutes.some((minute) => series.some(({ value }) => value(minute) !== null));
    return { ticks: [0, 0.25, 0.5, 0.75, 1], y: linearScale([0, 1], range), isEmpty: !known };
  }
  const values = minutes
    .flatMap((minute) => series.map(({ value }) => value(minute) ?? null))
    .filter((value) => value !== null);
  if (kind === "log") {
    const positive = values.filter((value) => value > 0);
    const ticks = positive.length ? logTicks(Math.min(...positive), Math.max(...positive)) : logTicks(1, 1000);
    return { ticks, y: logScale([ticks[0], ticks.at(-1)], range), isEmpty: !positive.length };
  }
  const sums =
    kind === "bars"
      ? minutes.map((minute) => series.reduce((sum, { value }) => sum + (value(minute) ?? 0), 0))
      : values;
  const largest = Math.max(0, ...sums);
  const ticks = linearTicks(largest || 4, { counts: series.every(({ whole }) => whole) });
  return { ticks, y: linearScale([0, ticks.at(-1)], range), isEmpty: largest === 0 };
}
