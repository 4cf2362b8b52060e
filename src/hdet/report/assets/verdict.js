// How a run went, in a sentence. verdict.py says the same in Python.
"use strict";

function factsOf(lines) {
  const facts = {
    rates: [],
    ofSchedule: false,
    others: new Map(),
    firstLoss: NaN,
    lastLoss: NaN,
    bestLoss: NaN,
    training: false,
    bestStep: null,
    kept: null,
    rollbacks: 0,
    recovered: 0,
    steps: 0,
    totalSteps: null,
    ended: false,
    stalled: false,
    cost: NaN,
    seconds: NaN,
  };
  const open = [];
  let [before, spent, seconds, inSyncs] = [0, 0, 0, 0]; // the first two: of earlier sessions in the same file
  for (const line of lines) {
    if (line.kind === "run") {
      facts.totalSteps = line.total_steps ?? null;
      facts.ended = facts.stalled = false;
      [before, spent, seconds, inSyncs] = [before + seconds, spent + inSyncs, 0, 0];
    } else if (line.kind === "end") {
      facts.ended = true;
      facts.steps = Math.max(facts.steps, line.step || 0);
    } else if (line.kind === "handed") facts.kept = line.weights;
    if ("kind" in line) continue;
    facts.steps = line.step || facts.steps;
    if (finite(line.seconds)) seconds = line.seconds;
    if (finite(line.sync_seconds)) inSyncs = line.sync_seconds;
    facts.stalled ||= listOf(line.events).some((e) => String(e).includes("nothing has improved since step"));
    takeValues(facts, line);
    takeLosses(facts, line, open);
  }
  if (before + seconds > 0) {
    facts.seconds = before + seconds;
    facts.cost = (spent + inSyncs) / (before + seconds);
  }
  facts.ended ||= facts.totalSteps !== null && facts.steps >= facts.totalSteps;
  return facts;
}

const isRate = (name) => String(name).split("/")[0] === "lr";

/** Learning rates without their schedule's decay, all else as it stands. */
function takeValues(facts, line) {
  const horizon = listOf(line.horizon);
  const down = horizon.some((seen) => seen.why === "the schedule decays");
  const plain = line.plain || {};
  const rates = [];
  for (const seen of listOf(line.hyperparameters)) {
    if (!isRate(seen.name)) facts.others.set(String(seen.name), orNaN(seen.base_after));
    else if (plain[seen.name]) {
      rates.push(orNaN(seen.base_after) / plain[seen.name]);
      facts.ofSchedule = !horizon.length;
    } else if (!(down && facts.rates.length)) rates.push(orNaN(seen.base_after));
  }
  if (rates.length) facts.rates = rates;
}

function takeLosses(facts, line, open) {
  const horizon = listOf(line.horizon);
  let [mean, previous] = [NaN, NaN];
  if (horizon.length) [mean, previous] = [orNaN(horizon[0].loss_mean), orNaN(horizon[0].loss_previous)];
  else {
    mean = previous = orNaN(line.held_out_mean);
    facts.training = Number.isNaN(mean);
    if (facts.training) mean = previous = meanOf(listOf(line.losses));
  }
  if (Number.isNaN(facts.firstLoss)) facts.firstLoss = Number.isNaN(previous) ? mean : previous;
  for (const before of open.filter((loss) => mean <= loss)) {
    open.splice(open.indexOf(before), 1);
    facts.recovered += 1;
  }
  if (horizon.some((seen) => seen.action === "back")) {
    facts.rollbacks += 1;
    open.push(previous);
  } else if (Number.isFinite(mean)) {
    facts.lastLoss = mean;
    if (!(mean >= facts.bestLoss)) [facts.bestLoss, facts.bestStep] = [mean, line.step];
  }
}

function sentence(facts) {
  if (!facts.steps) return "Nothing has been measured yet.";
  const parts = [foundText(facts), lossText(facts), rollbacksText(facts), endText(facts)];
  if (Number.isFinite(facts.cost)) parts.push(`syncs took ${share(facts.cost)} of the time`);
  const text = parts.filter(Boolean).join("; ");
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function ratesText(facts) {
  const rates = facts.rates.filter(Number.isFinite);
  if (!rates.length) return "";
  const digits = facts.ofSchedule ? 3 : 2;
  const [low, high] = [number(Math.min(...rates), digits), number(Math.max(...rates), digits)];
  return `${low === high ? low : `${low} to ${high}`}${facts.ofSchedule ? " times the schedule's" : ""}`;
}

function foundText(facts) {
  const named = [...facts.others].map(([name, value]) => `${name.replace(/_/g, " ")} ${number(value, 2)}`);
  const rates = ratesText(facts);
  const likely = (facts.kept || {}).rates || [];
  if (rates) {
    const around = finite(likely[0])
      ? ` (the best is probably between ${number(likely[0], 1)} and ${number(likely[1], 1)})`
      : "";
    named.unshift(`${rates.includes(" to ") ? "learning rates" : "a learning rate"} of ${rates}${around}`);
  }
  return named.length ? `found ${named.join(", ")}` : "";
}

function lossText(facts) {
  if (!Number.isFinite(facts.lastLoss)) return "no loss was finite";
  const text = `the ${facts.training ? "training " : ""}loss went from ${number(facts.firstLoss)} to ${number(facts.lastLoss)}`;
  const kept = facts.kept || {};
  if (finite(kept.estimate)) {
    const estimate = `${number(kept.estimate)} ± ${number(kept.error, 2)}`;
    return `${text}; kept the ${kept.kind} of step ${count(kept.step || 0)}, estimated loss ${estimate}`;
  }
  if (facts.bestStep !== null && facts.bestLoss < facts.lastLoss)
    return `${text}, lowest ${number(facts.bestLoss)} at step ${count(facts.bestStep)}`;
  return text;
}

function rollbacksText(facts) {
  if (!facts.rollbacks) return "no rollback";
  const all = { 1: "recovered", 2: "both recovered" }[facts.rollbacks] || "all recovered";
  const some = `${count(facts.recovered)} recovered`;
  return `${plural(facts.rollbacks, "rollback")}, ${facts.recovered === facts.rollbacks ? all : some}`;
}

function endText(facts) {
  const of = facts.totalSteps === null ? "" : ` of ${count(facts.totalSteps)}`;
  if (!facts.ended) return `last seen at step ${count(facts.steps)}${of}`;
  const early = facts.totalSteps === null || facts.steps < facts.totalSteps;
  const why = facts.stalled && early ? " because the held-out loss had stopped falling" : "";
  return `ended at step ${count(facts.steps)}${of}${why}`;
}
