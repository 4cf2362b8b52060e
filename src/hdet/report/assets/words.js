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

/** What one window decided and why. */
function decision(seen, before, after) {
  const moved = finite(before) && finite(after) ? `, from ${number(before, 2)} to ${number(after, 2)}` : "";
  const lag = `the lag, ${number(seen.lag)},`;
  const limit = number(seen.tolerated);
  switch (seen.action) {
    case "scale":
      return seen.why === "hardly moved"
        ? `The weights hardly moved: the rate is raised${moved}.`
        : `The first windows bring the weights to speed${moved}.`;
    case "up":
      return finite(seen.lag) && finite(seen.tolerated)
        ? `The rate grows${moved}: ${lag} is below the tolerated ${limit}, so the rate is what limits progress.`
        : `The rate grows${moved}${seen.why ? `: ${seen.why}` : ""}.`;
    case "down":
      return finite(seen.lag) && finite(seen.tolerated)
        ? `The rate shrinks${moved}: ${lag} is above the tolerated ${limit}, so noise is what limits progress.`
        : `The rate shrinks${moved}${seen.why ? `: ${seen.why}` : ""}.`;
    case "back":
      return `Back to the start of the window, at a smaller rate: ${seen.why || "the loss rose"}.`;
    default:
      return held(seen);
  }
}

function held(seen) {
  const texts = {
    "the schedule decays": "The schedule decays; the search is over.",
    "not significant": "The rate stays: what was seen is within the probe's noise.",
    "no progress": "The rate stays: the averaged path made no progress.",
    "": "The rate stays.",
  };
  return texts[seen.why || ""] || `The rate stays: ${seen.why}.`;
}
