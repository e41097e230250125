/** The engines: a row each, with drain and resume. */

import { requestJson } from "./api.js";
import { ShareBar } from "./badges.js";
import { confirm } from "./dialog.js";
import { byId, cell, element, KeyedList, setText } from "./dom.js";
import { age, count, decimal, duration, percent, UNKNOWN } from "./format.js";
import { announce, notify } from "./notices.js";

const HIGH_KV_USAGE = 0.9;
const HIGH_LOAD = 0.999;

/** Whether it is missed: it is down, refuses the router's key, or its requests fail. */
export function isFailing({ state, breaker, asleep }) {
  return !asleep && (state === "down" || state === "refused" || breaker === "open");
}

/** A word for the state of an engine, and the tone in which it is shown. */
export function engineState({ state, drained, asleep }) {
  if (asleep) return { text: drained ? "Asleep, drained" : "Asleep", tone: "quiet" };
  const word = { up: "Up", down: "Down", refused: "Refuses the key", unknown: "Unknown" }[state] ?? "Unknown";
  const tone = { up: "good", down: "bad", refused: "bad" }[state] ?? "quiet";
  return drained ? { text: `${word}, drained`, tone: tone === "bad" ? "bad" : "warn" } : { text: word, tone };
}

export function mountEngines() {
  const shown = { engines: [], spoken: new Map() };
  const list = new KeyedList(
    byId("engines").tBodies[0],
    (engine) => engine.name,
    (engine) => new EngineRow(engine, shown),
  );
  return ({ engines, router_now: now }) => {
    shown.engines = engines;
    list.update(engines.toSorted((one, other) => isFailing(other) - isFailing(one)).map((engine) => ({ ...engine, now })));
    byId("engines").classList.toggle(
      "no-gpu",
      engines.every((engine) => gpuText(engine) === UNKNOWN),
    );
    byId("engines").hidden = engines.length === 0;
    byId("engines-empty").hidden = engines.length > 0;
    announceChanges(engines, shown.spoken);
  };
}

function announceChanges(engines, spoken) {
  const present = new Set(engines.map(({ name }) => name));
  for (const name of spoken.keys()) if (!present.has(name)) spoken.delete(name);
  const changes = engines.flatMap((engine) => {
    const text = `Engine ${engine.name}: ${engineState(engine).text}, breaker ${engine.breaker}.`;
    const before = spoken.get(engine.name);
    spoken.set(engine.name, text);
    return before && before !== text ? [text] : [];
  });
  if (changes.length) announce(changes.join(" "));
}

class EngineRow {
  #engine;
  #shown;
  #busy = false;
  #cells = {};
  #load = new ShareBar("Load", { high: HIGH_LOAD });
  #kv = new ShareBar("KV cache in use", { high: HIGH_KV_USAGE });
  #gpu = cell("GPU", { class: "gpu" });
  #button = element("button", { type: "button", class: "button small", click: () => this.#change() });

  constructor(engine, shown) {
    this.#shown = shown;
    const text = (name, label, number = false) => (this.#cells[name] = cell(label, { class: number ? "number" : "" }));
    this.#cells.state = element("span", { class: "state" });
    this.#cells.detail = element("span", { class: "muted small" });
    this.#cells.cause = element("span", { class: "cause small" });
    this.node = element(
      "tr",
      { "data-engine": engine.name, tabindex: "-1" },
      element("th", { scope: "row" }, element("span", { class: "name" }, engine.name), this.#cells.cause, this.#cells.detail),
      cell("State", {}, this.#cells.state),
      cell("Load", { class: "bar-cell" }, this.#load.node),
      text("running", "Running", true),
      text("waiting", "Waiting", true),
      cell("KV cache", { class: "bar-cell" }, this.#kv.node),
      text("prefix", "Prefix hits", true),
      text("held", "Prefixes held", true),
      text("acceptance", "Acceptance", true),
      text("steps", "Tokens/step", true),
      text("breaker", "Breaker"),
      this.#gpu,
      cell("", { class: "row-action" }, this.#button),
    );
  }

  update(engine) {
    this.#engine = engine;
    const { text, tone } = engineState(engine);
    setText(this.#cells.state, text);
    this.#cells.state.dataset.tone = tone;
    this.node.classList.toggle("failing", isFailing(engine));
    setText(this.#cells.cause, causeText(engine));
    setText(
      this.#cells.detail,
      [`${engine.model} · ${engine.task}`, engine.draft ? `draft ${engine.draft}` : "no draft"].join(" · "),
    );
    this.node.title = engine.url ?? "";
    this.#load.update(engine.max_in_flight ? engine.in_flight / engine.max_in_flight : null, loadText(engine));
    this.#kv.update(engine.kv_cache_usage);
    setText(this.#cells.running, count(engine.running));
    setText(this.#cells.waiting, count(engine.waiting));
    setText(this.#cells.prefix, percent(engine.prefix_cache_hit_rate));
    setText(this.#cells.held, percent(heldShare(engine)));
    this.#cells.held.title = heldText(engine);
    setText(this.#cells.acceptance, percent(engine.spec_acceptance_rate));
    setText(this.#cells.steps, decimal(engine.spec_tokens_per_step));
    setText(this.#cells.breaker, engine.breaker);
    this.#cells.breaker.dataset.tone = { open: "bad", "half-open": "warn" }[engine.breaker] ?? "";
    setText(this.#gpu, gpuText(engine));
    this.#showButton();
  }

  #showButton() {
    const action = this.#engine.drained ? "Resume" : "Drain";
    // There is nothing to drain; what was drained can be put back into service.
    this.#button.hidden = !this.#engine.drained && ["down", "refused"].includes(this.#engine.state);
    setText(this.#button, this.#busy ? "Working…" : action);
    this.#button.setAttribute("aria-label", `${action} ${this.#engine.name}`);
    this.#button.setAttribute("aria-disabled", String(this.#busy));
  }

  async #change() {
    if (this.#busy) return;
    const engine = this.#engine;
    const action = engine.drained ? "resume" : "drain";
    if (!(await confirm(engine.drained ? resumeQuestion(engine) : drainQuestion(engine, this.#shown.engines)))) return;
    this.#busy = true;
    this.#showButton();
    try {
      const path = `/admin/engines/${encodeURIComponent(engine.name)}/${action}`;
      const result = await requestJson("POST", path);
      this.#engine = { ...this.#engine, drained: result.engine.drained };
      notify(resultText(engine.name, result));
    } catch (error) {
      notify(`${engine.name} was not changed. ${error.message}`, { bad: true });
    } finally {
      this.#busy = false;
      this.update(this.#engine);
    }
  }
}

/** "Down for 12m 5s: connection refused" */
function causeText(engine) {
  const { state, asleep, since, cause, now } = engine;
  if (asleep || (state !== "down" && state !== "refused")) return "";
  const length = typeof since === "number" ? ` for ${age(now - since)}` : "";
  return `${engineState(engine).text}${length}${cause ? `: ${cause}` : ""}`;
}

function loadText({ in_flight: inFlight, max_in_flight: most }) {
  return most ? `${count(inFlight)} / ${count(most)}` : count(inFlight);
}

/** The share of the KV cache that the router believes to hold prefixes. */
function heldShare({ prefix_tokens: tokens, prefix_capacity_tokens: most }) {
  return typeof tokens === "number" && most ? tokens / most : null;
}

function heldText(engine) {
  if (typeof engine.prefix_tokens !== "number") return "";
  const unused = engine.prefix_unused_seconds;
  const rate = engine.seconds_per_token;
  return [
    `${count(engine.prefix_tokens)} of ${count(engine.prefix_capacity_tokens)} tokens in ${count(engine.prefix_entries)} pieces, as this router believes`,
    typeof unused === "number" ? `the oldest unused for ${duration(unused)}` : null,
    typeof rate === "number" ? `${decimal(1e6 * rate)} µs for a token that is not held` : null,
  ]
    .filter(Boolean)
    .join("; ");
}

function gpuText({ temperature_celsius: celsius, power_watts: watts }) {
  const known = [
    [celsius, "°C"],
    [watts, " W"],
  ].filter(([value]) => typeof value === "number");
  return known.map(([value, unit]) => `${Math.round(value)}${unit}`).join(", ") || UNKNOWN;
}

function drainQuestion(engine, engines) {
  const others = engines.filter(
    (other) => other.name !== engine.name && other.model === engine.model && other.state === "up" && !other.drained,
  );
  return {
    title: `Drain ${engine.name}?`,
    lines: [
      "It gets no new requests from any router. Its requests in progress complete. It stays drained until it is resumed.",
    ],
    warning: others.length
      ? null
      : `It is the only engine of ${engine.model} in service. Without it, requests for ${engine.model} fail, except hits and those that a fallback model serves.`,
    action: "Drain",
    danger: others.length === 0,
  };
}

function resumeQuestion(engine) {
  return { title: `Resume ${engine.name}?`, lines: ["All routers send it requests again."], action: "Resume" };
}

function resultText(name, { engine, everywhere }) {
  const done = engine.drained ? `${name} is drained: it gets no new requests.` : `${name} is back in service.`;
  return everywhere
    ? done
    : `${done} Redis is down, so only one router process knows; the others follow when Redis is back.`;
}
