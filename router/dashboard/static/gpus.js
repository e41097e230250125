/** The GPUs whose engines take turns: a row each. */

import { byId, cell, element, KeyedList, setText } from "./dom.js";
import { age, count, duration, minuteOfDay } from "./format.js";

/** "coder for 3m 20s", "coder wakes up". Pure. */
export function awakeText({ engine, state, since }, now) {
  if (state === "waking up") return `${engine} wakes up`;
  const length = typeof since === "number" ? ` for ${age(now - since)}` : "";
  return `${engine}${length}${state === "about to sleep" ? ", about to sleep" : ""}`;
}

/** "coder since 12:03, wakes in about 1.2s". Pure. */
export function asleepText({ engine, since, wake_seconds: seconds }) {
  const start = typeof since === "number" ? ` since ${minuteOfDay(since)}` : "";
  const wake = typeof seconds === "number" ? `, wakes in about ${duration(seconds)}` : "";
  return `${engine}${start}${wake}`;
}

/** "12, 1 failed". Pure. */
export function switchesText({ switches, failed }) {
  return failed ? `${count(switches)}, ${count(failed)} failed` : count(switches);
}

export function mountGpus() {
  const list = new KeyedList(
    byId("gpus").tBodies[0],
    ({ name }) => name,
    ({ name }) => new GpuRow(name),
  );
  return ({ gpus = [], now }) => {
    list.update(gpus.map((gpu) => ({ ...gpu, now })));
    byId("gpus-section").hidden = gpus.length === 0;
  };
}

class GpuRow {
  #error = element("span", { class: "cause small" });
  #awake = cell("Awake");
  #asleep = cell("Asleep");
  #switches = cell("Switches in the last hour", { class: "number" });

  constructor(name) {
    this.node = element(
      "tr",
      { "data-gpu": name },
      element("th", { scope: "row" }, element("span", { class: "name" }, name), this.#error),
      this.#awake,
      this.#asleep,
      this.#switches,
    );
  }

  update(gpu) {
    const isAsleep = ({ state }) => state === "asleep" || state === "unknown";
    const awake = gpu.engines.filter((each) => !isAsleep(each));
    setText(this.#awake, awake.map((each) => awakeText(each, gpu.now)).join("; ") || "none");
    setText(this.#asleep, gpu.engines.filter(isAsleep).map(asleepText).join("; ") || "none");
    setText(this.#switches, switchesText(gpu));
    setText(this.#error, gpu.error);
  }
}
