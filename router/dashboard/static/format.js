/** Values as people read them. Unknown (null, undefined) is a dash, never 0. */

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** 1,234; 12.3k; 4.56M */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 10_000) return size % 1 === 0 || size >= 100 ? whole.format(value) : trim(value, size < 10 ? 1 : 0);
  if (size < 1e6) return `${trim(value / 1e3, size < 1e5 ? 1 : 0)}k`;
  if (size < 1e9) return `${trim(value / 1e6, size < 1e7 ? 2 : 1)}M`;
  return `${trim(value / 1e9, 2)}G`;
}

function trim(value, digits) {
  return String(Number(value.toFixed(digits)));
}

export function percent(value) {
  if (!known(value)) return UNKNOWN;
  const hundredfold = value * 100;
  return `${trim(hundredfold, hundredfold > 0 && hundredfold < 10 ? 1 : 0)}%`;
}

export function decimal(value, digits = 2) {
  return known(value) ? value.toFixed(digits) : UNKNOWN;
}

/** Milliseconds: 0.8 ms, 42 ms, 1.25 s */
export function milliseconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 10) return `${trim(value, 1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return value < 60_000 ? `${trim(value / 1000, value < 10_000 ? 2 : 1)} s` : duration(value / 1000);
}

/** Seconds in the two largest units: 42s, 3m 20s, 2h 5m, 3d 4h */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 60) return `${trim(seconds, seconds < 10 ? 1 : 0)}s`;
  const total = Math.round(seconds);
  const units = [
    [86_400, "d"],
    [3600, "h"],
    [60, "m"],
    [1, "s"],
  ];
  const first = units.findIndex(([size]) => total >= size);
  const [size, name] = units[first];
  const [nextSize, nextName] = units[first + 1] ?? [1, "s"];
  const rest = Math.floor((total % size) / nextSize);
  return `${Math.floor(total / size)}${name}${rest ? ` ${rest}${nextName}` : ""}`;
}

/** Whole seconds, so that a value that is shown every second does not flicker. */
export function age(seconds) {
  return known(seconds) ? duration(Math.max(0, Math.floor(seconds))) : UNKNOWN;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${trim(size, unit && size < 100 ? 1 : 0)} ${units[unit]}`;
}

const withSeconds = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const withMinutes = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const withDate = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** Unix time in the viewer's time zone: 14:05:09 */
export function clock(at) {
  return known(at) ? withSeconds.format(at * 1000) : UNKNOWN;
}

/** 14:05 */
export function minuteOfDay(at) {
  return withMinutes.format(at * 1000);
}

export function dateTime(at) {
  return known(at) ? withDate.format(at * 1000) : UNKNOWN;
}

export function plural(number, singular, several = `${singular}s`) {
  return `${count(number)} ${number === 1 ? singular : several}`;
}

/** `text` up to `length` characters. */
export function shorten(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
