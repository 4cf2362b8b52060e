// What in a history someone should hear about, with a level. alerts.py does the same in Python.
"use strict";

const ALERT_KINDS = [
  ["rollback", "error", /no rollback|weights are lost|not finite at the end/],
  ["replica lost", "error", /left out of the (mean|decision)|no replica has a finite loss/],
  ["replica unlike the others", "warning", /heard, but not as loud/],
  ["rollback", "warning", /: back to the weights of step/],
  ["overfitting", "warning", /nothing better since step|nothing has improved since step/],
  ["value at a bound", "warning", /clamped to/],
  [
    "steps not counted",
    "warning",
    /has not stepped since|without one of optimizer\.step|got \d+ of them since|has missed/,
  ],
  ["probe in doubt", "warning", /the probe/],
  ["no fan-out", "warning", /undoes the fan-out|at the same weights although|same on all ranks/],
];
const NOISY_WINDOWS = 3;
const RISES = 3;

/** Takes the lines of a run in order, and returns the alerts of each. */
class Alerts {
  constructor() {
    Object.assign(this, { step: null, bounds: {}, atBound: new Set(), noisy: 0, rises: 0, last: [NaN, NaN] });
  }

  see(line) {
    if (line.kind === "run") {
      this.bounds = isObject(line.explored) ? line.explored : {};
      this.atBound = new Set();
    }
    if (line.kind === "said") return [this.told(String(line.text), String(line.level || "warning"))];
    if ("kind" in line) return [];
    this.step = Number.isInteger(line.step) ? line.step : null;
    const found = listOf(line.events).map((event) => this.told(String(event)));
    return [...found, ...this.bounded(line), ...this.noise(line), ...this.overfits(line)];
  }

  told(text, least = "info") {
    for (const [kind, level, pattern] of ALERT_KINDS)
      if (pattern.test(text)) return { step: this.step, level, kind, text };
    return { step: this.step, level: least, kind: "event", text };
  }

  bounded(line) {
    const found = [];
    for (const seen of listOf(line.hyperparameters)) {
      const bounds = this.bounds[seen.name] || [null, null];
      const at = [0, 1].filter((i) => bounds[i] !== null && bounds[i] === seen.base_after);
      if (at.length && !this.atBound.has(seen.name)) {
        const which = ["lower", "upper"][at[0]];
        const text =
          `${seen.name} is at its ${which} bound, ${number(seen.base_after)}: ` +
          "widen the bounds if it should go on";
        found.push({ step: this.step, level: "warning", kind: "value at a bound", text });
      }
      if (at.length) this.atBound.add(seen.name);
      else this.atBound.delete(seen.name);
    }
    return found;
  }

  noise(line) {
    const horizon = listOf(line.horizon);
    if (!horizon.length) return [];
    this.noisy = horizon.every((seen) => seen.why === "not significant") ? this.noisy + 1 : 0;
    if (this.noisy !== NOISY_WINDOWS) return [];
    const text =
      `${NOISY_WINDOWS} windows in a row were within the probe's noise: give the probe more batches`;
    return [{ step: this.step, level: "warning", kind: "probe too noisy", text }];
  }

  overfits(line) {
    const horizon = listOf(line.horizon);
    const heldOut = orNaN(horizon.length ? horizon[0].loss_mean : line.held_out_mean);
    const training = meanOf(listOf(line.losses));
    this.rises = training < this.last[0] && heldOut > this.last[1] ? this.rises + 1 : 0;
    this.last = [training, heldOut];
    if (this.rises !== RISES) return [];
    const text = `for ${RISES} syncs the training loss fell and the held-out loss rose, to ${number(heldOut)}`;
    return [{ step: this.step, level: "warning", kind: "overfitting", text }];
  }
}

const meanOf = (values) => (values.length ? values.reduce((sum, v) => sum + orNaN(v), 0) / values.length : NaN);

function alertsOf(run) {
  const alerts = new Alerts();
  return run.lines.flatMap((line) => alerts.see(line));
}
