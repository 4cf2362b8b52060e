// How replicas differed, and what it all took.
"use strict";

const replicasOf = (run) => Math.max(0, ...run.syncs.map((s) => listOf(s.distance_measured).length));

// ---------------------------------------------------------------------- the fan-out

/** So many rounds are shown at first where single ones are to be seen. */
const ROUNDS_SHOWN = 8;

function fanOutChart(scene) {
  return fanChart(scene, "learning rate", false);
}

function fanRatioChart(scene) {
  const chart = fanChart(scene, "rate over the base rate", true);
  if (!chart) return null;
  const { x } = chart.data[0]; // four points a round
  chart.layout.xaxis.range = [0, x[Math.min(4 * ROUNDS_SHOWN, x.length) - 1]];
  return chart;
}

/** Each replica's learning rate, of the run in focus, or of the first whose replicas differ in it. */
function fanChart(scene, unit, overBase) {
  const differs = (run, name) => run.syncs.some((s) => new Set(listOf(valueOf(s, name).values)).size > 1);
  const found = [scene.focus, ...scene.runs].flatMap((run) =>
    namesOf(run, isRate).filter((name) => differs(run, name)).map((name) => [run, name]),
  );
  if (!found.length) return null;
  const [[run, name]] = found;
  const own = new Scene([run], run, scene.theme);
  const look = { line: { width: 1.2 }, hovertemplate: "step %{x}: %{y:.4g}" };
  const traces = [];
  for (let r = 0; r < Math.min(replicasOf(run), MOST_REPLICAS); r++)
    traces.push(own.trace(run, r, `replica ${r}`, fanOf(run.syncs, name, r, overBase), look));
  const ink = { line: { color: scene.theme.ink }, hoverinfo: "skip" };
  if (!overBase) traces.push(own.trace(run, 0, "base rate", usedRates(run.syncs, name), ink));
  const layout = own.layout(plainText(scene.several ? `${run.name}: ${unit}` : unit), { shapes: windowsOf(own) });
  return { data: traces, layout };
}

/** From the base to its own rate and back: lines that meet show where the replicas are averaged. */
function fanOf(syncs, name, r, overBase) {
  const points = { x: [], y: [] };
  let [step, base] = [0, NaN];
  for (const sync of syncs) {
    const seen = valueOf(sync, name);
    const ratio = orNaN(listOf(seen.values)[r]) / orNaN(seen.base_before);
    if (sync.step <= step) push(points, (step = sync.step), null);
    const from = finite(base) ? base : seen.base_before;
    for (const [part, factor] of [[0, 1], [0.1, ratio], [0.9, ratio], [1, 1]]) {
      const rate = overBase ? 1 : from + part * (seen.base_before - from);
      push(points, step + part * (sync.step - step), orNull(rate * factor));
    }
    [step, base] = [sync.step, seen.base_after];
  }
  return points;
}

// ---------------------------------------------------------------------- how they differed

function replicaLossChart(scene) {
  const run = scene.focus;
  const size = replicasOf(run);
  const chosen = run.syncs.some((s) => listOf(s.held_out).length > 1) ? "held_out" : "losses";
  const kind = chosen === "held_out" ? "held-out" : "training";
  if (size < 2) return null;
  const own = new Scene([run], run, scene.theme);
  const apart = (sync, r) => orNaN(listOf(sync[chosen])[r]) - meanOf(listOf(sync[chosen]).filter(finite));
  const traces = [];
  for (let r = 0; r < Math.min(size, MOST_REPLICAS); r++) {
    const points = along(run.syncs, (sync) => apart(sync, r));
    const look = { line: { width: 1.5, dash: DASHES[Math.floor(r / own.palette.length) % DASHES.length] } };
    if (!isEmpty(points)) traces.push(own.trace(run, r, `replica ${r}`, points, look));
  }
  return traces.length ? { data: traces, layout: own.layout(`${kind} loss minus its mean`) } : null;
}

function levelChart(scene) {
  const run = scene.focus;
  const [names, rows, labels] = [namesOf(run, () => true), [], []];
  const size = Math.min(replicasOf(run), MOST_REPLICAS);
  for (const name of names)
    for (let r = 0; r < size; r++) {
      const row = run.syncs.map((sync) => levelOf(valueOf(sync, name), r));
      if (!row.some((level) => finite(level) && level !== 0)) continue;
      rows.push(row);
      labels.push(names.length > 1 ? `${plainText(spoken(name))} · ${r}` : `replica ${r}`);
    }
  if (size < 2 || !rows.length) return null;
  const own = new Scene([run], run, scene.theme);
  const { alarm, back } = scene.theme;
  const trace = {
    type: "heatmap",
    name: "level",
    ...{ x: run.syncs.map((sync) => sync.step), y: labels, z: rows, zmin: -1, zmax: 1, xgap: 1, ygap: 1 },
    colorscale: [
      [0, own.palette[0]],
      [0.5, back],
      [1, alarm],
    ],
    colorbar: { thickness: 10, tickvals: [-1, 0, 1], ticktext: ["−1 below", "0 base", "+1 above"], outlinewidth: 0 },
    hovertemplate: "step %{x}, %{y}: level %{z:.2f}<extra></extra>",
  };
  const yaxis = { type: "category", autorange: "reversed", title: { text: "" } };
  return { data: [trace], layout: own.layout("", { showlegend: false, yaxis }) };
}

/** Where a replica's value lay between the outermost ones, from −1 to 1. */
function levelOf(seen, r) {
  const offsets = listOf(seen.values).map((value) => orNaN(value) - seen.base_before);
  const widest = Math.max(...offsets.map(Math.abs));
  return widest > 0 ? offsets[r] / widest : finite(offsets[r]) ? 0 : null;
}

function distanceChart(scene) {
  const traces = [];
  const farthest = (list) => Math.max(...listOf(list).map(orNaN));
  for (const run of scene.runs) {
    if (replicasOf(run) < 2) continue;
    const measured = along(run.syncs, (sync) => farthest(sync.distance_measured));
    const predicted = along(run.syncs, (sync) => farthest(sync.distance_predicted));
    if (!isEmpty(measured)) traces.push(scene.trace(run, 0, "measured", measured, { mode: "lines+markers" }));
    const dashed = { line: { dash: "dash" } };
    if (!isEmpty(predicted)) traces.push(scene.trace(run, 1, "predicted", predicted, dashed));
  }
  if (!traces.length) return null;
  const layout = scene.layout("distance from the mean", { yaxis: axisFor(traces, 2) });
  return { data: traces, layout };
}

// ---------------------------------------------------------------------- time and memory

function timeChart(scene) {
  const traces = [];
  for (const run of scene.runs) {
    const wall = along(run.syncs, (sync) => sync.seconds);
    if (!isEmpty(wall)) traces.push(scene.trace(run, 0, "since the start", wall));
    const spent = along(run.syncs, (sync) => sync.sync_seconds);
    if (!isEmpty(spent)) traces.push(scene.trace(run, 1, "of it in syncs", spent, { line: { dash: "dash" } }));
  }
  return traces.length ? { data: traces, layout: scene.layout("time (s)") } : null;
}

function memoryChart(scene) {
  const traces = [];
  const read = (kind) => (sync) => orNaN((sync.memory_bytes || {})[kind]) / 1e6;
  for (const run of scene.runs)
    [
      ["process", "this process, now"],
      ["device", "its device, at most so far"],
    ].forEach(([kind, label], i) => {
      const points = along(run.syncs, read(kind));
      if (!isEmpty(points)) traces.push(scene.trace(run, i, label, points, { line: { dash: DASHES[i] } }));
    });
  const layout = scene.layout("memory of rank 0 (MB)", { yaxis: { rangemode: "tozero" } });
  return traces.length ? { data: traces, layout } : null;
}
