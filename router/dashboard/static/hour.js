/** The last hour: headline figures and charts. */

import { Chart } from "./chart.js";
import { descriptions, element, setText } from "./dom.js";
import { count, duration, milliseconds, percent } from "./format.js";

const sum = (minutes, { value }) =>
  minutes.length ? minutes.reduce((total, minute) => total + (value(minute) ?? 0), 0) : null;
const latest = (minutes, { value }) =>
  minutes.map(value).findLast((known) => known !== null && known !== undefined) ?? null;

/** Hits among the requests that were looked up; null without any. */
export function hitRatio({ hits, misses, coalesced, stale }) {
  const lookups = hits + misses + coalesced + stale;
  return lookups ? hits / lookups : null;
}

const field = (name, label, tone, extra = {}) => ({ label, tone, value: (minute) => minute[name] ?? null, ...extra });
const ttft = (cache, quantile, label, tone, extra = {}) => ({
  label,
  tone,
  value: (minute) => minute.ttft_ms?.[cache]?.[quantile] ?? null,
  ...extra,
});

const REJECTED_TONES = ["stale", "bypass", "coalesced", "hit"];

/** The most frequent pairs of reason and tenant, and the rest. Pure. */
export function rejectedSeries(minutes) {
  const totals = new Map();
  for (const { refused = [] } of minutes)
    for (const { reason, tenant, count: number } of refused) {
      const label = `${reason}, ${tenant === "none" ? "no tenant" : tenant}`;
      totals.set(label, { reason, tenant, total: (totals.get(label)?.total ?? 0) + number });
    }
  const largest = [...totals].sort(([, one], [, other]) => other.total - one.total).slice(0, REJECTED_TONES.length);
  const series = largest.map(([label, { reason, tenant }], index) => ({
    label,
    tone: REJECTED_TONES[index],
    whole: true,
    value: ({ refused = [] }) => refused.find((row) => row.reason === reason && row.tenant === tenant)?.count ?? 0,
  }));
  const rest = (minute) => Math.max(0, minute.rejected - series.reduce((all, { value }) => all + value(minute), 0));
  if (series.length && !minutes.some((minute) => rest(minute) > 0)) return series;
  return [...series, { label: series.length ? "Others" : "Rejected", tone: "miss", whole: true, value: rest }];
}

const CHARTS = [
  {
    id: "requests",
    title: "Requests by cache result",
    unit: "per minute",
    kind: "bars",
    format: count,
    total: sum,
    series: [
      field("hits", "Hits", "hit", { whole: true }),
      field("coalesced", "Coalesced", "coalesced", { whole: true }),
      field("stale", "Stale", "stale", { whole: true }),
      field("misses", "Misses", "miss", { whole: true }),
      field("bypass", "Bypassed", "bypass", { whole: true }),
    ],
  },
  {
    id: "ratio",
    title: "Hit ratio",
    unit: "of lookups",
    kind: "share",
    format: percent,
    total: (minutes) =>
      hitRatio(
        Object.fromEntries(["hits", "misses", "coalesced", "stale"].map((name) => [name, sum(minutes, field(name))])),
      ),
    series: [{ label: "Hits", tone: "hit", value: hitRatio, area: true }],
  },
  {
    id: "ttft",
    title: "Time to first token",
    unit: "by minute, latest; log scale",
    kind: "log",
    format: milliseconds,
    total: latest,
    series: [
      ttft("hit", "p50", "Hit p50", "hit"),
      ttft("hit", "p99", "Hit p99", "hit", { dashed: true }),
      ttft("miss", "p50", "Miss p50", "miss"),
      ttft("miss", "p99", "Miss p99", "miss", { dashed: true }),
    ],
  },
  {
    id: "tokens",
    title: "Tokens generated and saved",
    unit: "per minute",
    kind: "bars",
    format: count,
    total: sum,
    series: [
      field("saved_tokens", "Saved", "hit", { whole: true }),
      field("completion_tokens", "Generated", "miss", { whole: true }),
    ],
  },
  {
    id: "gpu",
    title: "GPU time spent and saved",
    unit: "per minute",
    kind: "bars",
    format: duration,
    axisFormat: (seconds) => `${count(seconds)} s`,
    total: sum,
    series: [field("gpu_seconds_saved", "Saved", "hit"), field("gpu_seconds_spent", "Spent", "miss")],
  },
  {
    id: "errors",
    title: "Errors",
    unit: "per minute",
    empty: "None in the last hour",
    kind: "bars",
    format: count,
    total: sum,
    series: [field("errors", "5xx or broken off", "bad", { whole: true })],
  },
  {
    id: "rejected",
    title: "Rejected, by reason and tenant",
    unit: "per minute",
    empty: "None in the last hour",
    kind: "bars",
    format: count,
    total: sum,
    series: rejectedSeries,
  },
];

export function mountHour(figures, charts, hint) {
  const drawn = CHARTS.map((definition) => new Chart(charts, definition));
  const tiles = TILES.map(() => ({
    value: element("span", { class: "value" }),
    note: element("span", { class: "note muted" }),
  }));
  figures.append(
    ...descriptions(
      TILES.map(({ name, window = "last hour" }, index) => [
        [name, " ", element("span", { class: "window" }, window)],
        [tiles[index].value, tiles[index].note],
      ]),
    ),
  );
  const fill = (status) =>
    TILES.forEach(({ value, note, tone }, index) => {
      const hour = status.last_hour ?? {};
      setText(tiles[index].value, value(hour, status));
      tiles[index].value.dataset.tone = tone?.(hour) ?? "";
      setText(tiles[index].note, note(hour, status));
      hint.hidden = hour.requests !== 0;
    });
  fill({});
  return {
    updateHistory({ minutes }) {
      const bounded = minutes.slice(-60);
      for (const chart of drawn) chart.update(bounded);
    },
    updateStatus: fill,
  };
}

/** The sum of a figure over the routers. */
function total({ routers = [] }, name) {
  return count(routers.length ? routers.reduce((sum, router) => sum + (router[name] ?? 0), 0) : null);
}

const share = (part, all) => (all > 0 ? part / all : null);

const TILES = [
  {
    name: "In flight",
    window: "now",
    value: (_, status) => total(status, "in_flight"),
    note: (_, status) => `${total(status, "queued")} queued`,
  },
  {
    name: "Hit ratio",
    value: (hour) => percent(hour.hit_ratio),
    note: (hour) => `${count(hour.hits)} hits, ${count(hour.misses)} misses`,
  },
  {
    name: "Requests",
    value: (hour) => count(hour.requests),
    note: (hour) => `${count(hour.bypass)} bypassed`,
  },
  {
    name: "Errors",
    value: (hour) => count(hour.errors),
    note: (hour) => `${percent(share(hour.errors, hour.requests))} of the requests`,
    tone: (hour) => (hour.errors > 0 ? "bad" : ""),
  },
  {
    name: "Rejected",
    value: (hour) => count(hour.rejected),
    note: (hour) => `${percent(share(hour.rejected, hour.requests))} of the requests`,
  },
  {
    name: "Time to first token",
    value: (hour) => milliseconds(hour.ttft_p50_ms),
    note: (hour) => `median; p99 ${milliseconds(hour.ttft_p99_ms)}`,
  },
  {
    name: "Tokens saved",
    value: (hour) => count(hour.saved_tokens),
    note: (hour) => `${percent(share(hour.saved_tokens, hour.saved_tokens + hour.completion_tokens))} of all tokens`,
  },
  {
    name: "GPU time saved",
    value: (hour) => duration(hour.gpu_seconds_saved),
    note: (hour) => `beside ${duration(hour.gpu_seconds_spent)} spent`,
  },
];
