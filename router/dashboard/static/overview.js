/** The state of the system in a line, the routers, and Redis. */

import { byId, cell, descriptions, element, KeyedList, setText } from "./dom.js";
import { age, bytes, count, plural, UNKNOWN } from "./format.js";

const REFUSALS = {
  full: "Redis is full",
  "cannot-save": "Redis cannot save its data",
  "too-few-replicas": "Redis has too few replicas",
};

/** The worst state and a sentence about each problem. Pure. */
export function judge({ engines, redis }) {
  const names = (list) => list.map(({ name }) => name).join(", ");
  const down = engines.filter(({ state }) => state === "down");
  const refused = engines.filter(({ state }) => state === "refused");
  const isOff = ({ state }) => state === "down" || state === "refused";
  const open = engines.filter((engine) => !isOff(engine) && engine.breaker === "open");
  const problems = [];
  if (!redis.up) problems.push("Redis is down: every request is a bypass.");
  else if (redis.refuses_writes) problems.push(`${REFUSALS[redis.refuses_writes] ?? "Redis takes no writes"}: nothing is stored.`);
  if (engines.length && down.length === engines.length) problems.push("All engines are down: only hits can be served.");
  else if (down.length) problems.push(`${plural(down.length, "engine is", "engines are")} down: ${names(down)}.`);
  if (refused.length) problems.push(`The router's key is refused by ${names(refused)}: see api_key.`);
  if (open.length) problems.push(`The breaker of ${names(open)} is open.`);
  const drained = engines.filter((engine) => engine.drained && !isOff(engine));
  const allDrained = drained.length > 0 && drained.length === engines.length;
  if (allDrained) problems.push("All engines are drained: only hits can be served.");
  const notes = drained.length && !allDrained ? [`Drained: ${names(drained)}.`] : [];
  if (problems.length) return { state: "bad", text: [...problems, ...notes].join(" "), problems: problems.length };
  const up = engines.filter(({ state }) => state === "up").length;
  const unknown = engines.length - up;
  const all = engines.length === 1 ? "The engine is up." : `All ${engines.length} engines are up.`;
  const summary = unknown ? `${up} of ${plural(engines.length, "engine")} up, ${unknown} not checked yet.` : all;
  return {
    state: notes.length || unknown ? "warn" : "good",
    text: [engines.length ? summary : "No engine is known.", ...notes].join(" "),
    problems: 0,
  };
}

export function mountOverview() {
  const list = new KeyedList(
    byId("routers").tBodies[0],
    (router) => router.id,
    () => new RouterRow(),
  );
  return (status) => {
    const { state, text, problems } = judge(status);
    byId("health").dataset.state = state;
    setText(byId("health"), text);
    document.title = problems ? `(${problems}) Roundhouse` : "Roundhouse";
    byId("facts").replaceChildren(...descriptions(facts(status)));
    list.update(status.routers.map((router) => ({ ...router, now: status.now })));
    byId("routers").hidden = status.routers.length === 0;
    byId("routers-empty").hidden = status.routers.length > 0;
  };
}

function facts({ routers, redis }) {
  const versions = [...new Set(routers.map(versionText))].join(", ");
  const memory =
    redis.used_memory === null
      ? null
      : `${bytes(redis.used_memory)}${redis.maxmemory ? ` of ${bytes(redis.maxmemory)}` : ""}`;
  const keys = redis.keys === null ? null : plural(redis.keys, "key");
  return [
    ["Routers", routers.length ? `${plural(routers.length, "process", "processes")}, ${versions}` : UNKNOWN],
    [
      "Redis",
      redis.up
        ? [`${redis.version ?? ""} up`.trim(), memory, keys].filter(Boolean).join(", ")
        : element("strong", { "data-tone": "bad" }, "down"),
    ],
  ];
}

function versionText({ version, compiled }) {
  return `${version}${compiled ? " compiled" : ""}`;
}

class RouterRow {
  #cells = {};

  constructor() {
    const text = (name, label, number = false) => (this.#cells[name] = cell(label, { class: number ? "number" : "" }));
    this.#cells.name = element("th", { scope: "row" });
    this.node = element(
      "tr",
      {},
      this.#cells.name,
      text("version", "Version"),
      text("state", "State"),
      text("inFlight", "In flight", true),
      text("queued", "Queued", true),
      text("uptime", "Up for", true),
      text("seen", "Seen", true),
    );
  }

  update(router) {
    setText(this.#cells.name, `${router.host}, process ${router.pid}`);
    this.node.title = router.id;
    setText(this.#cells.version, versionText(router));
    setText(this.#cells.state, router.draining ? "Shutting down" : "Serving");
    this.#cells.state.dataset.tone = router.draining ? "warn" : "good";
    setText(this.#cells.inFlight, count(router.in_flight));
    setText(this.#cells.queued, count(router.queued));
    setText(this.#cells.uptime, age(router.now - router.started_at));
    setText(this.#cells.seen, router.seen < 5 ? "now" : `${age(router.seen)} ago`);
  }
}
