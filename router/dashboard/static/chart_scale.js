/** Scales and ticks of charts. All functions are pure. */

/** Ticks from 0 to at least `largest`, in steps of 1, 2, 2.5 or 5 times a power of ten; whole steps for `counts`. */
export function linearTicks(largest, { steps = 4, counts = false } = {}) {
  const rough = Math.max(largest, counts ? 1 : Number.MIN_VALUE) / steps;
  const power = 10 ** Math.floor(Math.log10(rough));
  const allowed = counts && power <= 1 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = Math.max(allowed.find((factor) => factor * power >= rough * 0.999) * power, counts ? 1 : 0);
  const top = Math.ceil(largest / step - 1e-9) || 1;
  return Array.from({ length: top + 1 }, (_, index) => index * step);
}

/** Powers of ten around the values from `smallest` to `largest`, at least two. */
export function logTicks(smallest, largest) {
  const first = Math.floor(Math.log10(smallest));
  const last = Math.max(Math.ceil(Math.log10(largest)), first + 1);
  return Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
}

export function linearScale([low, high], [from, to]) {
  const slope = (to - from) / (high - low || 1);
  return (value) => from + (value - low) * slope;
}

export function logScale([low, high], range) {
  const scale = linearScale([Math.log10(low), Math.log10(high)], range);
  return (value) => scale(Math.log10(Math.max(value, low)));
}

/** The indexes of the minutes that get a label: each quarter of an hour. */
export function quarterIndexes(minutes) {
  return minutes.flatMap(({ at }, index) => (Math.round(at / 60) % 15 === 0 ? [index] : []));
}

/** Runs of neighbouring indexes whose value is known. */
export function knownRuns(values) {
  const runs = [];
  let run = null;
  values.forEach((value, index) => {
    if (value === null || value === undefined) run = null;
    else if (run) run.push(index);
    else runs.push((run = [index]));
  });
  return runs;
}
