// The page: runs that were embedded, dropped or are followed live become a verdict, charts and tables.
"use strict";

const CHARTS = [
  ["search", "Learning rate", rateChart, "Each step is a decision, with its reason on hover. Dashed: the plain schedule at the height found."],
  ["search", "Held-out loss", lossChart, "Dotted lines: where a window ended. What e is above m is noise, which averaging removes."],
  ["search", "Lag", lagChart, "How many windows the noise throws the run back. Dashed: what is tolerated."],
  ["search", "Replicas' learning rates", fanOutChart, "The replicas fan out around the base rate, and are averaged where the lines meet."],
  ["search", "Replicas' rates over the base", fanRatioChart, "Who has which rate changes with every sync. The first eight rounds; double-click for all."],
  ["hyperparameters", "Slopes", slopeChart, "What the loss gains along each, pooled over rounds, with its error."],
  ["replicas", "Replicas' losses", replicaLossChart, "Each replica's loss, less the mean of all."],
  ["replicas", "Levels", levelChart, "Who explored what: below the base, at it, above it."],
  ["replicas", "Distances", distanceChart, "Of the farthest replica. Dashed: what Eq. 2 predicts; on a shared gradient the two agree."],
  ["time", "Time", timeChart, "Wall-clock of rank 0. Dashed: what syncs took of it."],
  ["time", "Memory", memoryChart, "What the training process holds, all of it."],
];
const MOST_ROWS = 400;
const state = { runs: [], focus: null, live: null, drawn: new Map() };
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const byId = (id) => document.getElementById(id);

/** An element with a class, text (never HTML) and children. */
function make(tag, { className = "", text = "", ...more } = {}, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  for (const [key, value] of Object.entries(more)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    name: document.documentElement.dataset.theme,
    font: read("font"),
    touch: matchMedia("(pointer: coarse)").matches,
    ...Object.fromEntries(["ink", "soft", "line", "back", "alarm"].map((name) => [name, read(name)])),
  };
}

// ---------------------------------------------------------------------- drawing

function draw() {
  for (const [i, run] of state.runs.entries()) Object.assign(run, { index: i, facts: factsOf(run.lines) });
  const shown = state.runs.filter((run) => run.shown);
  if (!shown.includes(state.focus)) state.focus = shown[0] || null;
  byId("empty").hidden = state.runs.length > 0;
  byId("report").hidden = !state.runs.length;
  drawHead(shown);
  drawCharts(shown);
  drawFocus();
  if (state.focus) {
    drawDecisions(state.focus);
    drawEvents(state.focus);
    drawSetUp(state.focus);
  }
  performance.mark("drawn");
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

function drawHead(shown) {
  const several = state.runs.length > 1;
  byId("verdicts").replaceChildren(...shown.map((run) => verdictOf(run, several)));
  byId("tiles").replaceChildren(...(several || !shown.length ? [] : tilesOf(shown[0])));
  byId("tiles").hidden = several;
  byId("runs").hidden = !several;
  byId("report").classList.toggle("several", several);
  if (several) byId("runs-body").replaceChildren(...state.runs.map(rowOfRun));
}

function swatch(run) {
  const palette = PALETTES[theme().name];
  return make("span", { className: "swatch", style: `background:${palette[run.index % palette.length]}` });
}

function verdictOf(run, several) {
  const verdict = make("p", { className: "verdict", text: sentence(run.facts) });
  const name = make("h2", { className: "run-name" }, ...(several ? [swatch(run)] : []), run.name);
  return make("section", { className: "run-verdict" }, name, verdict, ...noticesOf(run));
}

function noticesOf(run) {
  const notices = [];
  if (run.torn)
    notices.push(`${plural(run.torn, "line")} cut short, as by a crash, ${run.torn === 1 ? "is" : "are"} left out.`);
  if (run.whole > run.lines.length)
    notices.push(
      `${count(run.whole)} records, ${count(run.lines.length)} of them drawn: evenly spaced, and those with events.`,
    );
  return notices.map((text) => make("p", { className: "notice", text }));
}

function tilesOf(run) {
  const { facts } = run;
  const levels = alertsOf(run).filter((alert) => alert.level !== "info").length;
  const tiles = [
    ["learning rate found", ratesText(facts) || "–"],
    ["loss, first → last", `${number(facts.firstLoss)} → ${number(facts.lastLoss)}`],
    ["steps", facts.totalSteps === null ? count(facts.steps) : `${count(facts.steps)} of ${count(facts.totalSteps)}`],
    ["rollbacks", facts.rollbacks ? `${facts.rollbacks}, ${facts.recovered} recovered` : "none"],
    ["time in syncs", Number.isFinite(facts.cost) ? share(facts.cost) : "–"],
    ["wall-clock", duration(facts.seconds)],
    ["alerts", levels ? `${count(levels)} below` : "none"],
  ];
  return tiles.map(([label, text]) =>
    make("div", { className: "tile" }, make("dt", { text: label }), make("dd", { text })),
  );
}

function rowOfRun(run) {
  const box = make("input", { type: "checkbox", "aria-label": `show ${run.name}` });
  box.checked = run.shown;
  box.addEventListener("change", () => {
    run.shown = box.checked;
    draw();
  });
  const { facts } = run;
  const label = make("label", { className: "run-label" }, box, swatch(run), run.name);
  const cells = [
    ratesText(facts) || "–",
    number(facts.firstLoss),
    number(facts.lastLoss),
    `${number(facts.bestLoss)}${facts.bestStep === null ? "" : ` @ ${count(facts.bestStep)}`}`,
    facts.totalSteps === null ? count(facts.steps) : `${count(facts.steps)} / ${count(facts.totalSteps)}`,
    String(facts.rollbacks),
    Number.isFinite(facts.cost) ? share(facts.cost) : "–",
  ];
  return make("tr", {}, make("th", { scope: "row" }, label), ...cells.map((text) => make("td", { text })));
}

// ---------------------------------------------------------------------- charts

function drawCharts(shown) {
  const scene = new Scene(shown, state.focus, theme());
  const wanted = shown.length ? CHARTS.map(([where, title, chart, caption]) => [where, title, chart(scene), caption]) : [];
  const own = shown.length ? hyperparameterCharts(scene) : [];
  const range = "The value that all share; the band is where replicas lay.";
  const charts = [...wanted, ...own.map(([name, chart]) => ["hyperparameters", spoken(name), chart, range])];
  const present = charts.filter(([, , chart]) => chart);
  const names = new Set(present.map(([where, title]) => `${where} ${title}`));
  for (const [key, card] of state.drawn)
    if (!names.has(key)) {
      Plotly.purge(card.plot);
      card.element.remove();
      state.drawn.delete(key);
    }
  // A chart takes the width that it finds, and what is hidden has none.
  for (const where of ["search", "hyperparameters", "replicas", "time"])
    byId(where).hidden = !present.some(([section]) => section === where);
  for (const [where, title, , caption] of present) cardFor(where, title, caption);
  for (const [where, title, chart, caption] of present) cardFor(where, title, caption).show(chart);
}

function cardFor(where, title, caption) {
  const key = `${where} ${title}`;
  if (!state.drawn.has(key)) state.drawn.set(key, new Card(where, title, caption));
  return state.drawn.get(key);
}

/** A chart with its title, its caption, and its PNG, SVG and CSV. */
class Card {
  constructor(where, title, caption) {
    this.title = title;
    this.plot = make("div", { className: "plot" });
    const buttons = ["PNG", "SVG", "CSV"].map((kind) => this.button(kind));
    const head = make("header", {}, make("h3", { text: capital(title) }));
    head.append(make("span", { className: "buttons" }, ...buttons));
    this.legend = make("div", { className: "legend" });
    const below = make("figcaption", { text: caption });
    this.element = make("figure", { className: "card" }, head, this.legend, this.plot, below);
    this.element.dataset.chart = title;
    byId(`${where}-charts`).append(this.element);
  }

  button(kind) {
    const button = make("button", { type: "button", text: kind, title: `Save ${this.title} as ${kind}` });
    button.addEventListener("click", () => this.save(kind.toLowerCase()));
    return button;
  }

  show(chart) {
    this.chart = chart;
    this.legend.replaceChildren(...chart.data.filter((trace) => trace.told).map(legendOf));
    const { layout } = chart;
    if (state.range) layout.xaxis = { ...layout.xaxis, range: [...state.range], autorange: false };
    const options = { displayModeBar: false, responsive: true, doubleClick: false };
    Plotly.react(this.plot, chart.data, layout, options);
    if (this.heard) return;
    this.heard = true;
    this.plot.on("plotly_relayout", (change) => select(change));
    this.plot.on("plotly_doubleclick", () => selectAll());
  }

  async save(kind) {
    const name = `hdet-${this.title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${kind}`;
    if (kind === "csv") return download(name, new Blob([csvOf(tableOf(this.chart))], { type: "text/csv" }));
    // A picture stands on its own: on a background, with a title.
    const { data, layout } = this.chart;
    const title = { text: plainText(this.title), x: 0.02, xanchor: "left" };
    const margin = { ...layout.margin, t: 96 };
    const showlegend = !data.some((trace) => trace.z);
    const whole = { ...layout, title, margin, showlegend, paper_bgcolor: theme().back };
    const image = await Plotly.toImage({ data, layout: whole }, { format: kind, width: 1000, height: 560, scale: 2 });
    const [head, body] = [image.slice(0, image.indexOf(",")), image.slice(image.indexOf(",") + 1)];
    const text = head.includes("base64") ? atob(body) : decodeURIComponent(body);
    const content = head.includes("base64") ? Uint8Array.from(text, (c) => c.charCodeAt(0)) : text;
    return download(name, new Blob([content], { type: kind === "png" ? "image/png" : "image/svg+xml" }));
  }
}

const DASH_LENGTHS = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "9 4", longdashdot: "9 3 2 3" };

/** What a line or a mark in the chart stands for. */
function legendOf(trace) {
  const drawing = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const svg = drawing("svg", { width: 26, height: 12, "aria-hidden": "true" });
  if (trace.fill) svg.append(drawing("rect", { width: 26, height: 12, rx: 2, fill: trace.fillcolor }));
  else if (trace.mode === "markers")
    svg.append(drawing("path", { d: "M8 1 L18 11 M18 1 L8 11", stroke: trace.marker.color, "stroke-width": 3 }));
  else {
    const dash = DASH_LENGTHS[trace.line.dash] || "";
    const stroke = { stroke: trace.line.color, "stroke-width": 2.5, "stroke-dasharray": dash };
    svg.append(drawing("line", { x1: 0, x2: 26, y1: 6, y2: 6, ...stroke }));
  }
  return make("span", {}, svg, trace.told);
}

function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  return blob;
}

/** One selection of steps for all charts. */
function select(change) {
  const from = change["xaxis.range[0]"] ?? (change["xaxis.range"] || [])[0];
  const to = change["xaxis.range[1]"] ?? (change["xaxis.range"] || [])[1];
  if (!finite(from) || !finite(to)) return;
  if (state.range && state.range[0] === from && state.range[1] === to) return;
  state.range = [from, to];
  byId("all-steps").hidden = false;
  for (const card of state.drawn.values()) Plotly.relayout(card.plot, { "xaxis.range": [from, to] });
}

function selectAll() {
  state.range = null;
  byId("all-steps").hidden = true;
  for (const card of state.drawn.values()) Plotly.relayout(card.plot, { "xaxis.autorange": true });
}

// ---------------------------------------------------------------------- tables, of one run

function drawFocus() {
  const shown = state.runs.filter((run) => run.shown);
  byId("focus").hidden = shown.length < 2;
  byId("focus-run").replaceChildren(
    ...shown.map((run) => {
      const option = make("option", { text: run.name, value: String(run.index) });
      option.selected = run === state.focus;
      return option;
    }),
  );
}

function drawDecisions(run) {
  const rows = [];
  for (const sync of run.syncs) {
    const rate = values(sync).find((seen) => isRate(seen.name));
    listOf(sync.horizon).forEach((seen, i, all) => {
      const moved = values(sync).filter((value) => isRate(value.name))[all.length > 1 ? i : 0] || rate || {};
      const words = decision(seen, moved.base_before, moved.base_after);
      rows.push([sync.step, all.length > 1 ? `${spoken(seen.name)}: ${words}` : words, seen.loss_mean, seen.action]);
    });
    for (const seen of values(sync).filter((value) => !isRate(value.name) || !listOf(sync.horizon).length))
      if (seen.base_before !== seen.base_after)
        rows.push([sync.step, `${capital(wordsOf(sync, seen.name))}.`, sync.held_out_mean ?? meanOf(listOf(sync.losses)), ""]);
  }
  byId("decisions").hidden = !rows.length;
  byId("decisions-more").textContent =
    rows.length > MOST_ROWS ? `The last ${MOST_ROWS} of ${count(rows.length)}.` : "";
  byId("decisions-body").replaceChildren(
    ...rows.slice(-MOST_ROWS).map(([step, words, loss, action]) =>
      make(
        "tr",
        { className: `action-${action}` },
        make("th", { scope: "row", text: count(step) }),
        make("td", { text: number(loss, 4) }),
        make("td", { className: "words", text: words }),
      ),
    ),
  );
}

function drawEvents(run) {
  const alerts = alertsOf(run);
  byId("events").hidden = !alerts.length;
  const marks = { error: "✕", warning: "▲", info: "●" };
  byId("events-more").textContent =
    alerts.length > MOST_ROWS ? `The last ${MOST_ROWS} of ${count(alerts.length)}.` : "";
  byId("events-body").replaceChildren(
    ...alerts.slice(-MOST_ROWS).map(({ step, level, kind, text }) =>
      make(
        "tr",
        { className: `level-${level}` },
        make("th", { scope: "row", text: step === null ? "–" : count(step) }),
        make("td", { className: "level", text: `${marks[level] || "●"} ${level}` }),
        make("td", { className: "words" }, make("strong", { text: kind }), ` ${text}`),
      ),
    ),
  );
}

function drawSetUp(run) {
  const { opening } = run;
  const starts = run.lines.filter((line) => line.kind === "run").length;
  const versions = isObject(opening.versions) ? opening.versions : {};
  const facts = [
    ["file", run.path],
    ["run", [opening.caller, opening.id, starts > 1 ? `started ${starts} times` : ""].filter(Boolean).join(", ")],
    ["began", opening.began],
    ["command", opening.command],
    ["optimizer", opening.optimizer],
    ["parameters", finite(opening.parameters) ? count(opening.parameters) : undefined],
    ["replicas", opening.replicas],
    ["device", opening.device],
    ["versions", Object.entries(versions).map(([name, version]) => `${name} ${version}`).join(", ")],
    ["platform", opening.platform],
    ...Object.entries(isObject(opening.configuration) ? opening.configuration : {}),
  ];
  const known = facts.filter(([, value]) => value !== undefined && value !== null && value !== "");
  byId("set-up-facts").replaceChildren(
    ...known.flatMap(([name, value]) => [make("dt", { text: String(name) }), make("dd", { text: String(value) })]),
  );
}
