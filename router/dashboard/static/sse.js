/** Reads a stream of server-sent events. */

const LONGEST_LINE = 1_000_000;

/** Fed text, it returns the data of complete events; text may be cut anywhere. */
export class EventParser {
  #rest = "";
  #data = [];

  feed(text) {
    const lines = (this.#rest + text).split(/\r\n|\n/);
    this.#rest = lines.pop().slice(-LONGEST_LINE);
    const events = [];
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(5).replace(/^ /, ""));
      else if (line === "" && this.#data.length) {
        events.push(this.#data.join("\n"));
        this.#data = [];
      }
    }
    return events;
  }
}
