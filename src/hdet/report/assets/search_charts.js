// What a run searched for and found: learning rate, losses, lag, other hyperparameters.
"use strict";

function rateChart(scene) {
  const traces = [];
  for (const run of scene.runs) {
    namesOf(run, isRate).forEach((name, i, all) => {
      const label = all.length > 1 ? spoken(name) : "used";
      traces.push(scene.trace(run, 2 * i, label, usedRates(run.syncs, name), { hoverinfo: "skip" }));
      const plain = plainRates(run, name);
      if (!isEmpty(plain))
        traces.push(
          scene.trace(run, 2 * i + 1, "plain schedule at that height", plain, {
            line: { dash: "dash", width: 1.5 },
            hoverinfo: "skip",
          }),
        );
      traces.push(untold(scene.trace(run, 2 * i, "decision", ...decisionMarks(run, name))));
    });
  }
  if (!traces.some((trace) => !isEmpty(trace))) return null;
  const rates = traces.flatMap((trace) => trace.y).filter((y) => finite(y) && y > 0);
  return { data: traces, layout: scene.layout("learning rate (log)", { yaxis: logAxis(rates) }) };
}

/** From what one decision left to what the next found: a schedule may move between them. */
function usedRates(syncs, name) {
  const points = { x: [], y: [] };
  let before = -Infinity;
  for (const sync of syncs) {
    const seen = valueOf(sync, name);
    if (before === -Infinity) push(points, 0, orNull(seen.base_before));
    if (sync.step <= before) push(points, before, null);
    push(points, sync.step, orNull(seen.base_before));
    push(points, sync.step, orNull(seen.base_after));
    before = sync.step;
  }
  return points;
}

const orNull = (value) => (finite(value) && value > 0 ? value : null);

function plainRates(run, name) {
  const found = listOf(run.facts.rates)[0];
  const searched = run.syncs.some((sync) => listOf(sync.horizon).length);
  return along(run.syncs, (sync) => orNull((sync.plain || {})[name] * (searched ? found : 1)));
}

function decisionMarks(run, name) {
  const points = along(run.syncs, (sync) => orNull(valueOf(sync, name).base_after));
  const bySteps = new Map(run.syncs.map((sync) => [sync.step, sync]));
  const told = points.x.map((step) => wordsOf(bySteps.get(step), name));
  return [
    points,
    {
      mode: "markers",
      text: told.map((text, i) => plainText(`step ${count(points.x[i])}: ${text}`)).map(folded),
      hovertemplate: "%{text}<extra></extra>",
      marker: { size: 7, symbol: points.x.map((step) => SYMBOLS[first(bySteps.get(step)).action] || "circle") },
    },
  ];
}

/** What one sync decided of a hyperparameter. */
function wordsOf(sync, name) {
  const seen = valueOf(sync, name);
  if (listOf(sync.horizon).length && isRate(name)) return decision(first(sync), seen.base_before, seen.base_after);
  const move = `${spoken(name)}: ${number(seen.base_before)} to ${number(seen.base_after)}`;
  return finite(seen.slope) ? `${move}, slope ${number(seen.slope)} ± ${number(seen.error, 2)}` : move;
}

/** A long text over several lines. */
function folded(text) {
  return text.replace(/(.{40,60}?) /g, "$1<br>");
}

function lossChart(scene) {
  const traces = [];
  for (const run of scene.runs) {
    const read = scene.several
      ? [["held-out, m", (s) => first(s).loss_mean ?? s.held_out_mean]]
      : [
          ["p: mean of the window before", (s) => first(s).loss_previous],
          ["m: mean of this window", (s) => first(s).loss_mean],
          ["e: its last iterate", (s) => first(s).loss_end],
          ["held-out, averaged model", (s) => (listOf(s.horizon).length ? null : s.held_out_mean)],
          ["training", (s) => meanOf(listOf(s.losses))],
        ];
    read.forEach(([label, value], i) => {
      const points = along(run.syncs, value);
      const look = { mode: "lines+markers", marker: { size: 5 }, line: { dash: DASHES[i], width: 2 } };
      if (!isEmpty(points)) traces.push(scene.trace(run, i, label, points, look));
    });
    const backs = run.syncs.filter((sync) => listOf(sync.horizon).some((seen) => seen.action === "back"));
    const where = along(backs, (sync) => first(sync).loss_mean ?? first(sync).loss_end);
    const mark = { mode: "markers", marker: { symbol: "x", size: 11, color: scene.theme.alarm } };
    const marks = scene.trace(run, 0, "rollback", where, mark);
    if (!isEmpty(where)) traces.push(scene.several ? untold(marks) : marks);
  }
  if (!traces.length) {
    for (const run of scene.runs) {
      const points = along(run.syncs, (sync) => meanOf(listOf(sync.losses)));
      if (!isEmpty(points)) traces.push(scene.trace(run, 0, "training", points));
    }
  }
  if (!traces.length) return null;
  const layout = scene.layout("loss", { yaxis: axisFor(traces), shapes: windowsOf(scene) });
  return { data: traces, layout };
}

/** Where windows ended: a line each, where they are few enough to be told apart. */
function windowsOf(scene) {
  const [run] = scene.runs;
  if (scene.several || run.syncs.length > MOST_MARKED) return [];
  const line = { color: scene.theme.line, width: 1, dash: "dot" };
  return run.syncs.map(({ step }) => ({
    type: "line",
    layer: "below",
    ...{ x0: step, x1: step, y0: 0, y1: 1, yref: "paper", line },
  }));
}

function lagChart(scene) {
  const traces = [];
  const tolerated = scene.runs.flatMap((run) => run.syncs.map((s) => first(s).tolerated)).filter(finite);
  const limit = 3 * Math.max(1, ...tolerated);
  const cut = (value) => (finite(value) ? Math.max(-limit, Math.min(limit, value)) : NaN);
  for (const run of scene.runs) {
    const lag = along(run.syncs, (sync) => cut(first(sync).lag));
    if (isEmpty(lag)) continue;
    const whole = along(run.syncs, (sync) => first(sync).lag);
    const look = {
      mode: "lines+markers",
      text: whole.y.map((value) => number(value)),
      hovertemplate: "step %{x}: lag %{text}<extra></extra>",
      marker: {
        size: 6,
        symbol: whole.y.map((v) => (v > limit ? "triangle-up" : v < -limit ? "triangle-down" : "circle")),
      },
    };
    traces.push(scene.trace(run, 0, "lag", lag, look));
    const allowed = along(run.syncs, (sync) => cut(first(sync).tolerated));
    const dashed = { line: { dash: "dash", shape: "hv" }, hovertemplate: "tolerated %{y:.3g}<extra></extra>" };
    traces.push(scene.trace(run, 1, "tolerated", allowed, dashed));
  }
  return traces.length ? { data: traces, layout: scene.layout("lag (windows)") } : null;
}

// ---------------------------------------------------------------------- other hyperparameters

function hyperparameterCharts(scene) {
  const isOther = (name) => !isRate(name);
  const names = [...new Set(scene.runs.flatMap((run) => namesOf(run, isOther)))].slice(0, 8);
  return names.map((name) => [name, valueChart(scene, name)]).filter(([, chart]) => chart);
}

function valueChart(scene, name) {
  const traces = [];
  for (const run of scene.runs) {
    const read = (pick) => along(run.syncs, (sync) => pick(valueOf(sync, name)));
    const base = read((seen) => seen.base_after);
    if (isEmpty(base)) continue;
    const edge = (pick) => read((seen) => (listOf(seen.values).length ? pick(...seen.values.map(orNaN)) : NaN));
    const [low, high] = [edge(Math.min), edge(Math.max)];
    if (!scene.several && !isEmpty(low)) {
      const band = { line: { width: 0 }, hoverinfo: "skip" };
      traces.push(untold(scene.trace(run, 0, "least of the replicas", low, band)));
      const fill = { fill: "tonexty", fillcolor: faint(scene.palette[0]), line: { width: 0 }, hoverinfo: "skip" };
      traces.push(scene.trace(run, 0, "where replicas lay", high, fill));
    }
    traces.push(scene.trace(run, 0, "base", base, { mode: "lines+markers", marker: { size: 5 } }));
  }
  if (!traces.length) return null;
  return { data: traces, layout: scene.layout(plainText(spoken(name)), { yaxis: axisFor(traces, 2) }) };
}

const faint = (color) => `${color}33`;

function slopeChart(scene) {
  const traces = [];
  for (const run of scene.runs)
    namesOf(run, (name) => !isRate(name)).forEach((name, i) => {
      const slope = along(run.syncs, (sync) => valueOf(sync, name).slope);
      if (isEmpty(slope)) return;
      const error = along(run.syncs, (sync) => valueOf(sync, name).error);
      const bars = { type: "data", array: error.y, thickness: 1, width: 2 };
      const look = { mode: "lines+markers", marker: { size: 5 }, error_y: bars, line: { dash: DASHES[i] } };
      traces.push(scene.trace(run, i, spoken(name), slope, look));
    });
  return traces.length ? { data: traces, layout: scene.layout("slope ± standard error") } : null;
}
