// Runs as charts: pure functions from lines to what plotly draws. null where a history has nothing to draw.
"use strict";

// Okabe and Ito's colours, told apart by those who see fewer; every series also has a dash or a symbol of its own.
const PALETTES = {
  light: ["#0072b2", "#d55e00", "#007f5f", "#a8487e", "#8a6d00", "#3f6fd1"],
  dark: ["#56b4e9", "#f08c3a", "#2fc79b", "#e59ac4", "#e8c547", "#9db8ff"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const SYMBOLS = { up: "triangle-up", down: "triangle-down", hold: "circle", back: "x", scale: "diamond" };
const MOST_REPLICAS = 16;
const MOST_MARKED = 60;

// Plotly reads some HTML in texts; what a history holds is text.
const plainText = (text) =>
  String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** What charts share: the runs to draw, the one whose details are shown, and how they look. */
class Scene {
  constructor(runs, focus, theme) {
    Object.assign(this, { runs, focus, theme, palette: PALETTES[theme.name], several: runs.length > 1 });
  }

  /** A series of a run: of one run the colour tells series apart, of several the colour is the run's. */
  trace(run, series, name, points, more = {}) {
    const color = this.palette[(this.several ? run.index : series) % this.palette.length];
    return {
      type: "scatter",
      mode: "lines",
      name: plainText(this.several ? `${run.name}: ${name}` : name),
      // Of several runs a chart names each once; its caption says what is dashed.
      told: this.several ? (series === 0 ? run.name : "") : name,
      ...points,
      ...more,
      line: { color, width: 2, dash: this.several ? DASHES[series % DASHES.length] : "solid", ...more.line },
      marker: { color, size: 7, ...more.marker },
    };
  }

  layout(unit, more = {}) {
    const { ink, soft, line } = this.theme;
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, tickcolor: line };
    return {
      font: { family: this.theme.font, size: 12, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 20, t: 10, b: 44 },
      hovermode: "closest",
      hoverlabel: { align: "left", namelength: 40 },
      showlegend: false, // the page has its own, which takes no room from the chart; a saved picture has this one
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12, color: soft } },
      dragmode: this.theme.touch ? false : "zoom",
      ...more,
      xaxis: { ...axis, title: { text: "optimizer step", standoff: 8 }, rangemode: "tozero", ...more.xaxis },
      yaxis: { ...axis, title: { text: unit, standoff: 8 }, fixedrange: true, exponentformat: "e", ...more.yaxis },
    };
  }
}

/** A trace that no legend names. */
const untold = (trace) => ({ ...trace, told: "", showlegend: false });

/** Points of a line; a run that was started again from an earlier step begins a new one. */
function along(syncs, read) {
  const points = { x: [], y: [] };
  let before = -Infinity;
  for (const sync of syncs) {
    if (sync.step <= before) push(points, before, null);
    before = sync.step;
    push(points, sync.step, finite(read(sync)) ? read(sync) : null);
  }
  return points;
}

function push(points, x, y) {
  points.x.push(x);
  points.y.push(y);
}

const isEmpty = (points) => !points.y.some(finite);

/** A logarithmic axis where values are positive and a decade apart. */
function axisFor(traces, decades = 1) {
  const values = traces.flatMap((trace) => trace.y || []).filter(finite);
  const positive = values.length > 0 && Math.min(...values) > 0;
  return positive && Math.log10(Math.max(...values) / Math.min(...values)) > decades ? logAxis(values) : {};
}

/** Whole decades are labelled; within one, some more. */
function logAxis(values) {
  const decades = values.length ? Math.log10(Math.max(...values) / Math.min(...values)) : 1;
  return { type: "log", dtick: decades > 1.5 ? Math.max(1, Math.round(decades / 6)) : "D2" };
}

const values = (sync) => listOf(sync.hyperparameters);
const valueOf = (sync, name) => values(sync).find((seen) => seen.name === name) || {};
const first = (sync) => listOf(sync.horizon)[0] || {};

/** Names of what is explored; learning rates that always agree count once. */
function namesOf(run, wanted) {
  const names = [...new Set(run.syncs.flatMap((sync) => values(sync).map((seen) => seen.name)))].filter(wanted);
  const alike = (name) => run.syncs.every((s) => valueOf(s, name).base_after === valueOf(s, names[0]).base_after);
  return names.every(alike) ? names.slice(0, 1) : names.slice(0, 8);
}

/** Rows of what a chart shows, for a spreadsheet. */
function tableOf(chart) {
  const rows = [["series", "x", "y", "value", "standard error"]];
  for (const trace of chart.data) {
    const name = String(trace.name).replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
    if (trace.z) trace.z.forEach((row, i) => row.forEach((z, j) => rows.push([name, trace.x[j], trace.y[i], z, ""])));
    else
      trace.x.forEach((x, i) => rows.push([name, x, trace.y[i], "", trace.error_y ? trace.error_y.array[i] : ""]));
  }
  return rows;
}

/** Text that a spreadsheet reads; what looks like a formula stays text. */
function csvOf(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
