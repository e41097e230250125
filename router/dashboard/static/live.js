/**
 * The stream of events from the router.
 *
 * - While the page is hidden, there is no connection, and so no cost for the routers.
 * - A connection that is silent for SILENCE milliseconds counts as lost: the router sends its status every 2 seconds.
 * - After a loss it is opened again at once, since a router ends its streams now and then. If that fails, or the new
 *   connection does not last, it is tried again after 1 second at first and up to 30.
 */

import { requestJson } from "./api.js";

const SILENCE = 20_000;
const LASTING = 10_000; // some proxies cut a connection right after its first event
const FIRST_DELAY = 1000;
const LONGEST_DELAY = 30_000;
const EVENTS = ["status", "history", "requests", "batches"];

export class LiveEvents {
  #onEvent;
  #onState;
  #source = null;
  #timer = 0;
  #failures = 0;
  #openedAt = 0;
  #stopped = false;

  /** `onEvent(name, data)`; `onState("live" | "reconnecting" | "paused" | "ended")` */
  constructor(onEvent, onState) {
    this.#onEvent = onEvent;
    this.#onState = onState;
    document.addEventListener("visibilitychange", () => this.#followVisibility());
  }

  start() {
    this.#followVisibility();
  }

  /** Ends it for good: the session is over. */
  stop() {
    this.#stopped = true;
    this.#close();
    this.#onState("ended");
  }

  #followVisibility() {
    if (this.#stopped) return;
    this.#close();
    if (document.hidden) this.#onState("paused");
    else this.#open();
  }

  #open() {
    this.#close();
    const source = new EventSource("/dashboard/events");
    this.#source = source;
    this.#openedAt = performance.now();
    for (const name of EVENTS) source.addEventListener(name, (event) => this.#receive(name, event.data));
    source.addEventListener("error", () => this.#lost());
    this.#expect();
  }

  #receive(name, text) {
    this.#expect();
    this.#onState("live");
    this.#onEvent(name, JSON.parse(text));
  }

  #expect() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#lost(), SILENCE);
  }

  #lost() {
    this.#close();
    if (this.#stopped) return;
    this.#failures = performance.now() - this.#openedAt >= LASTING ? 1 : this.#failures + 1;
    if (this.#failures === 1) {
      this.#open();
      return;
    }
    this.#onState("reconnecting");
    this.#timer = setTimeout(() => this.#open(), Math.min(FIRST_DELAY * 2 ** (this.#failures - 2), LONGEST_DELAY));
    // An EventSource does not tell the status of its response. This request does, and it ends the session on a 401.
    requestJson("GET", "/admin/status")
      .then((status) => this.#onEvent("status", status))
      .catch(() => {});
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
