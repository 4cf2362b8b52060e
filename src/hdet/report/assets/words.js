// Numbers as a person reads them. verdict.py does the same in Python.
"use strict";

const finite = (value) => typeof value === "number" && Number.isFinite(value);
const orNaN = (value) => (finite(value) ? value : NaN);

/** So many significant digits, with a power of ten only instead of many zeros. */
function number(value, digits = 3) {
  if (!finite(value)) return "–";
  if (value === 0) return "0";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const rounded = Number(`${mantissa}e${exponent}`);
  if (Math.abs(rounded) >= 1e-3 && Math.abs(rounded) < 1e5) return String(rounded);
  return `${String(Number(mantissa))}e${Number(exponent)}`;
}

const count = (value) => value.toLocaleString("en-US");
const plural = (value, one) => `${count(value)} ${one}${value === 1 ? "" : "s"}`;
const share = (value) => `${number(100 * value, 2)} %`;

/** 6.4 MB, 12 kB. */
function bytes(value) {
  if (!finite(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${number(value)} ${units[at]}`;
}

/** 4.2 s, 3 min 20 s, 5 h 12 min. */
function duration(seconds) {
  if (!finite(seconds)) return "–";
  if (seconds < 1) return `${number(1000 * seconds, 2)} ms`;
  if (seconds < 60) return `${number(seconds, 2)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** weight_decay and lr/0 as words. */
const spoken = (name) => String(name).replace(/_/g, " ").replace(/^lr\b/, "learning rate");

/** Why a window says nothing for or against the rate. */
const UNSEEN = {
  "not significant": "what was seen is within the probe's noise",
  "no progress": "the averaged path made no progress",
  "nothing learnt": "the probe's loss has not clearly fallen yet",
  "one sample": "the probe has one sample, which says nothing",
};

/** What one window decided and why. */
function decision(seen, before, after) {
  const moved = finite(before) && finite(after) ? `, from ${number(before, 2)} to ${number(after, 2)}` : "";
  switch (seen.action) {
    case "scale":
      return seen.why === "hardly moved" || seen.why === "rounded away"
        ? `The weights hardly moved: the rate is raised${moved}.`
        : `The weights are brought to speed${moved}.`;
    case "up":
      return `The rate grows${moved}${because(seen, seen.lag < seen.tolerated, "below", "the rate is", "higher")}.`;
    case "down":
      return `The rate shrinks${moved}${because(seen, seen.lag > seen.tolerated, "above", "noise is", "lower")}.`;
    case "back":
      return `Back to the start of the window, at a smaller rate: ${seen.why || "the loss rose"}.`;
    default:
      return held(seen);
  }
}

/** Why the rate moved: by evidence, or toward the usual rate where there is none, or too little. */
function because(seen, agrees, side, limit, usual) {
  const nothing = UNSEEN[seen.why];
  if (nothing) return `, toward the usual rate: ${nothing}, so nothing speaks for or against the rate`;
  if (!finite(seen.lag) || !finite(seen.tolerated)) return seen.why ? `: ${seen.why}` : "";
  const lag = `the lag, ${number(seen.lag)}, is`;
  return agrees
    ? `: ${lag} ${side} the tolerated ${number(seen.tolerated)}, so ${limit} what limits progress`
    : `: the usual rate is ${usual}, and ${lag} too close to the tolerated ${number(seen.tolerated)} to outweigh it`;
}

function held(seen) {
  const texts = {
    "the schedule decays": "The schedule decays; the search is over.",
    "": "The rate stays.",
  };
  if (UNSEEN[seen.why]) return `Nothing speaks for or against the rate, and it stays: ${UNSEEN[seen.why]}.`;
  return texts[seen.why || ""] || `The rate stays: ${seen.why}.`;
}
