/** The batches of all tenants: those that are open, and the last ones that have ended; nothing where they are turned off. */

import { ShareBar } from "./badges.js";
import { byId, cell, element, KeyedList, setText } from "./dom.js";
import { count, dateTime, duration, percent, plural, UNKNOWN } from "./format.js";
import { announce } from "./notices.js";

const STATES = {
  validating: { text: "Checking the file", tone: "quiet" },
  in_progress: { text: "Running", tone: "good" },
  finalizing: { text: "Writing the results", tone: "good" },
  cancelling: { text: "Being cancelled", tone: "warn" },
  completed: { text: "Complete", tone: "good" },
  failed: { text: "Failed", tone: "bad" },
  expired: { text: "Expired", tone: "bad" },
  cancelled: { text: "Cancelled", tone: "quiet" },
};

const whole = (number) => number.toLocaleString("en-US"); // not shortened, so that each line is seen to be done

/** What happens to a batch, the tone in which it is shown, and why no line of it runs. Pure. */
export function batchState({ status, paused, waiting_for: reason }) {
  if (paused && (status === "validating" || status === "in_progress")) return { text: "Paused", tone: "warn", reason: "" };
  if (reason && status === "in_progress") return { text: "Waiting", tone: "warn", reason };
  return { ...(STATES[status] ?? { text: status, tone: "quiet" }), reason: "" };
}

/** How many lines have a result, of how many, and what share of the answers came from the cache. Pure. */
export function batchProgress({ total, completed, failed, cached }) {
  const done = completed + failed;
  return {
    share: total ? done / total : null,
    text: total ? `${whole(done)} of ${whole(total)} ${total === 1 ? "line" : "lines"}` : UNKNOWN,
    cached: completed ? cached / completed : null,
  };
}

/** "12.3/s"; lines of long answers may take minutes each, so slow ones are by the minute. Pure. */
export function rateText(perSecond) {
  if (typeof perSecond !== "number") return UNKNOWN;
  return perSecond >= 1 || perSecond === 0 ? `${count(perSecond)}/s` : `${count(60 * perSecond)}/min`;
}

/** "23h 4m" until the window ends. Pure. */
export function windowText({ expires_at: end }, now) {
  if (typeof end !== "number") return UNKNOWN;
  return end > now ? `in ${duration(Math.ceil(end - now))}` : "over";
}

export function mountBatches() {
  const spoken = new Map();
  const [open, ended] = [
    ["batches", OpenRow],
    ["batches-ended", EndedRow],
  ].map(
    ([id, Row]) =>
      new KeyedList(
        byId(id).tBodies[0],
        ({ tenant, id: batch }) => `${tenant}/${batch}`,
        (batch) => new Row(batch),
      ),
  );
  return (found) => {
    byId("batches-section").hidden = !found.enabled;
    open.update(found.open.map((batch) => ({ ...batch, now: found.now })));
    ended.update(found.ended);
    byId("batches").hidden = found.open.length === 0;
    byId("batches-empty").hidden = found.open.length > 0;
    const more = found.open_batches - found.open.length;
    byId("batches-more").hidden = more <= 0;
    setText(byId("batches-more"), `${plural(more, "later batch", "later batches")} not shown.`);
    byId("batches-ended-section").hidden = found.ended.length === 0;
    const last = found.ended.length === 1 ? "batch" : plural(found.ended.length, "batch", "batches");
    setText(byId("batches-ended-summary"), `The last ${last} that ended`);
    announceChanges([...found.open, ...found.ended], spoken);
  };
}

function announceChanges(batches, spoken) {
  const present = new Set(batches.map(({ id }) => id));
  for (const id of spoken.keys()) if (!present.has(id)) spoken.delete(id);
  const changes = batches.flatMap((batch) => {
    const text = `Batch ${batch.id} of ${batch.tenant}: ${batchState(batch).text}.`;
    const before = spoken.get(batch.id);
    spoken.set(batch.id, text);
    return before && before !== text ? [text] : [];
  });
  if (changes.length) announce(changes.join(" "));
}

/** What a batch is called, and the cells that both tables have. */
class BatchRow {
  cells = {};

  constructor({ id, tenant, endpoint }, ...cells) {
    this.node = element(
      "tr",
      { "data-batch": id },
      element("th", { scope: "row" }, element("code", {}, id), element("span", { class: "muted small" }, endpoint)),
      cell("Tenant", {}, tenant),
      ...cells,
    );
  }

  showState(batch) {
    const { text, tone } = batchState(batch);
    setText(this.cells.state, text);
    this.cells.state.dataset.tone = tone;
  }

  showCounts(batch) {
    setText(this.cells.cached, percent(batchProgress(batch).cached));
    this.cells.cached.title = `${plural(batch.cached, "answer")} from the cache`;
    setText(this.cells.failed, count(batch.failed));
    this.cells.failed.dataset.tone = batch.failed ? "bad" : "";
  }
}

function stateCells() {
  return {
    state: element("span", { class: "state" }),
    cached: cell("From the cache", { class: "number" }),
    failed: cell("Failed", { class: "number" }),
  };
}

class OpenRow extends BatchRow {
  constructor(batch) {
    const cells = {
      ...stateCells(),
      reason: element("span", { class: "muted small" }),
      rate: cell("Rate", { class: "number" }),
      left: cell("Time left", { class: "number" }),
      window: cell("Window ends", { class: "number" }),
    };
    const progress = new ShareBar(`Progress of ${batch.id}`, { role: "progressbar" });
    super(
      batch,
      cell("State", {}, element("span", {}, cells.state, cells.reason)),
      cell("Progress", { class: "bar-cell" }, progress.node),
      cells.cached,
      cells.failed,
      cells.rate,
      cells.left,
      cells.window,
    );
    this.cells = { ...cells, progress };
  }

  update(batch) {
    this.showState(batch);
    this.showCounts(batch);
    setText(this.cells.reason, batchState(batch).reason);
    const { share, text } = batchProgress(batch);
    this.cells.progress.update(share, text);
    setText(this.cells.rate, rateText(batch.lines_per_second));
    setText(this.cells.left, batch.seconds_left === null ? UNKNOWN : duration(Math.ceil(batch.seconds_left)));
    setText(this.cells.window, windowText(batch, batch.now));
    this.cells.window.title = dateTime(batch.expires_at);
  }
}

class EndedRow extends BatchRow {
  constructor(batch) {
    const cells = { ...stateCells(), lines: cell("Lines", { class: "number" }) };
    super(
      batch,
      cell("Result", {}, cells.state),
      cells.lines,
      cells.cached,
      cells.failed,
      cell("Took", { class: "number" }, duration(batch.ended_at - batch.created_at)),
      cell("Ended", {}, dateTime(batch.ended_at)),
    );
    this.cells = cells;
  }

  update(batch) {
    this.showState(batch);
    this.showCounts(batch);
    setText(this.cells.lines, batchProgress(batch).text);
  }
}
