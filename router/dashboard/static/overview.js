/** The state of the system in a line, the routers, and Redis. */

import { byId, cell, descriptions, element, KeyedList, setText } from "./dom.js";
import { age, bytes, count, plural, UNKNOWN } from "./format.js";

/** The state in a line; what is wrong stands below it. Pure. */
export function judge({ engines, problems = [] }) {
  const serious = problems.filter(({ severity }) => severity !== "info");
  if (serious.length) {
    const isCritical = serious.some(({ severity }) => severity !== "warning");
    return { state: isCritical ? "bad" : "warn", text: plural(serious.length, "problem"), problems: serious.length };
  }
  if (!engines.length) return { state: "good", text: "No engine is known.", problems: 0 };
  const asleep = engines.filter((engine) => engine.asleep).length;
  const up = engines.filter(({ state }) => state === "up").length;
  const unknown = engines.length - up - asleep;
  const all = engines.length === 1 ? "The engine is up." : `All ${engines.length} engines are up.`;
  const rest = [asleep ? `${asleep} asleep` : null, unknown ? `${unknown} not checked yet` : null].filter(Boolean);
  return {
    state: problems.length || unknown ? "warn" : "good",
    text: rest.length ? `${up} of ${plural(engines.length, "engine")} up, ${rest.join(", ")}.` : all,
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
