// Draws the charts that the page holds as JSON, and follows a run while it trains.
"use strict";

const hidden = new Set(); // numbers of runs that are not shown
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 14, 10, 38];
const finite = (value) => typeof value === "number" && Number.isFinite(value);
const count = (value) => Math.round(value).toLocaleString("en-US");

/** Three significant digits, with a power of ten only instead of many zeros. */
function number(value) {
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-4 && size < 1e5)) return String(Number(value.toPrecision(3)));
  const [mantissa, exponent] = value.toExponential(2).split("e");
  return `${Number(mantissa)}e${Number(exponent)}`;
}

function svg(tag, attributes, ...inner) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inner);
  return element;
}

// ---------------------------------------------------------------------- scales

/** Round numbers within a range. */
function ticksOf(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + step * 1e-9; k++) ticks.push(k * step + 0);
  return ticks;
}

/** Powers of ten; within two decades also twice and five times each. */
function logTicksOf(low, high) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.round((to - from) / 6));
  const parts = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = from; e <= to; e += every) for (const m of parts) ticks.push(m * 10 ** e);
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function scaleOf(chart, series) {
  const values = series.flatMap((one) => [...one.y, ...(one.low || [])]).filter(finite);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const log = low > 0 && (chart.log ?? high / low > 30);
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const pad = log ? (high / low) ** 0.04 : 0.04 * (high - low);
  [low, high] = log ? [low / pad, high * pad] : [low - pad, high + pad];
  const at = log ? (y) => Math.log(y / low) / Math.log(high / low) : (y) => (y - low) / (high - low);
  return { at, ticks: log ? logTicksOf(low, high) : ticksOf(low, high, 5) };
}

// ---------------------------------------------------------------------- one chart

function draw(figure) {
  const chart = (figure.chart ||= JSON.parse(figure.querySelector("script").textContent));
  const plot = figure.querySelector(".plot");
  const [width, height] = [plot.clientWidth, plot.clientHeight];
  const series = chart.series.filter((one) => !hidden.has(one.run));
  if (!width || !series.some((one) => one.y.some(finite))) return plot.replaceChildren();
  const scale = scaleOf(chart, series);
  const x = (step) => LEFT + ((width - LEFT - RIGHT) * step) / Math.max(1, chart.last);
  const y = (value) => height - BOTTOM - (height - TOP - BOTTOM) * scale.at(value);
  const drawing = svg("svg", { width, height, role: "img", "aria-label": chart.title });
  for (const tick of scale.ticks)
    drawing.append(
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "tick", x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, number(tick)),
    );
  for (const tick of ticksOf(0, Math.max(1, chart.last), width < 420 ? 4 : 8))
    drawing.append(svg("text", { class: "tick", x: x(tick), y: height - BOTTOM + 18, "text-anchor": "middle" }, count(tick)));
  drawing.append(
    svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM }),
    svg("text", { class: "unit", x: (LEFT + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, "optimizer step"),
  );
  for (const one of series) drawing.append(...shapesOf(one, x, y));
  plot.replaceChildren(drawing);
  drawing.addEventListener("pointermove", (event) => point(event, drawing, series, x, y));
  drawing.addEventListener("pointerleave", () => leave(drawing));
  return drawing;
}

function shapesOf(one, x, y) {
  const points = one.x.map((step, i) => (finite(one.y[i]) ? [x(step), y(one.y[i])] : null));
  const look = { class: `series run-${one.run % 8} ${one.style || ""} ${one.mark || ""}`, "stroke-opacity": one.opacity ?? 1 };
  if (one.mark === "kept") return points.filter(Boolean).map(([cx, cy]) => svg("circle", { ...look, cx, cy, r: 6.5 }));
  if (one.mark)
    return points.filter(Boolean).map(([a, b]) => svg("path", { ...look, d: `M${a - 5} ${b - 5}l10 10m0 -10l-10 10` }));
  if (one.style === "band") {
    const inside = one.x.map((_, i) => i).filter((i) => points[i] && finite(one.low[i]));
    const edge = (at, order) => order.map((i) => `${x(one.x[i])} ${y(at[i])}`).join("L");
    return [svg("path", { ...look, d: `M${edge(one.y, inside)}L${edge(one.low, [...inside].reverse())}Z` })];
  }
  let path = "";
  points.forEach((each, i) => (path += each ? `${points[i - 1] ? "L" : "M"}${each[0].toFixed(1)} ${each[1].toFixed(1)}` : ""));
  const alone = points.filter((each, i) => each && !points[i - 1] && !points[i + 1]);
  return [svg("path", { ...look, d: path }), ...alone.map(([cx, cy]) => svg("circle", { ...look, cx, cy, r: 2 }))];
}

// ---------------------------------------------------------------------- hover

/** Every series at the nearest step, and why, for the one that is nearest. */
function point(event, drawing, series, x, y) {
  const box = drawing.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  let nearest = null;
  const found = [];
  for (const one of series.filter((each) => each.style !== "band")) {
    let best = -1;
    one.x.forEach((step, i) => {
      if (finite(one.y[i]) && (best < 0 || Math.abs(x(step) - px) <= Math.abs(x(one.x[best]) - px))) best = i;
    });
    if (best < 0 || (one.mark && Math.abs(x(one.x[best]) - px) > 10)) continue;
    const [dx, dy] = [x(one.x[best]) - px, y(one.y[best]) - py];
    const hit = { one, i: best, far: Math.hypot(dx, dy) };
    if (!one.mark) found.push(hit);
    if (!nearest || hit.far < nearest.far) nearest = hit;
  }
  if (!nearest) return leave(drawing);
  const at = nearest.one.x[nearest.i];
  drawing.querySelector(".cross")?.remove();
  drawing.append(svg("line", { class: "cross", x1: x(at), x2: x(at), y1: TOP, y2: box.height - BOTTOM }));
  const rows = found.map(({ one, i }) => row(`swatch run-${one.run % 8}`, `${one.name}: ${number(one.y[i])}`));
  const note = (nearest.one.notes || [])[nearest.i];
  tip(event, row("", `step ${count(at)}`), ...rows, ...(note ? [row("", note)] : []));
}

function row(swatch, text) {
  const made = document.createElement("div");
  if (swatch) made.append(Object.assign(document.createElement("span"), { className: swatch }));
  made.append(text);
  return made;
}

function tip(event, ...rows) {
  const box = document.getElementById("tip");
  box.replaceChildren(...rows);
  box.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
  const above = event.clientY + 16 + box.offsetHeight > innerHeight;
  box.style.left = `${Math.max(4, left) + scrollX}px`;
  box.style.top = `${(above ? event.clientY - box.offsetHeight - 12 : event.clientY + 16) + scrollY}px`;
}

function leave(drawing) {
  drawing.querySelector(".cross")?.remove();
  document.getElementById("tip").hidden = true;
}

// ---------------------------------------------------------------------- the page

/** The chart as a file that stands alone: its style goes into it. */
function savedSvg(figure) {
  const copy = figure.querySelector("svg").cloneNode(true);
  const drawn = figure.querySelectorAll("svg *");
  copy.querySelectorAll("*").forEach((element, i) => {
    const style = getComputedStyle(drawn[i]);
    for (const name of ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family"])
      element.setAttribute(name, style.getPropertyValue(name));
  });
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

function save(figure) {
  const name = `hdet-${figure.chart.title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.svg`;
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(savedSvg(figure)), download: name });
  link.click();
}

function drawAll() {
  document.querySelectorAll("figure").forEach(draw);
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

document.addEventListener("click", (event) => {
  if (event.target.matches("figure button")) save(event.target.closest("figure"));
});
document.addEventListener("change", (event) => {
  const run = Number(event.target.dataset.run);
  if (event.target.checked) hidden.delete(run);
  else hidden.add(run);
  drawAll();
});
addEventListener("resize", drawAll);

/** Ask for what is new, for good: the server answers when there is something, or after a while with nothing. */
async function follow() {
  const token = new URLSearchParams(location.search).get("token") || "";
  const pause = () => new Promise((done) => setTimeout(done, 1000));
  let seen = "";
  for (;;) {
    try {
      const answer = await fetch(`content?${new URLSearchParams({ seen, token })}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const told = await answer.json();
      document.getElementById("lost").hidden = true;
      if (told.version !== seen) show(told.content);
      seen = told.version;
    } catch {
      document.getElementById("lost").hidden = false;
    }
    await pause();
  }
}

/** New content; what was open stays open, and what was hidden hidden. */
function show(content) {
  const open = new Set([...document.querySelectorAll("details[open] summary")].map((one) => one.textContent.split(":")[0]));
  const titles = (one) => one.querySelector("summary").textContent.split(":")[0];
  document.querySelector("main").innerHTML = content;
  for (const one of document.querySelectorAll("details")) one.open = open.has(titles(one));
  for (const box of document.querySelectorAll("input[data-run]")) box.checked = !hidden.has(Number(box.dataset.run));
  drawAll();
}

drawAll();
if (document.body.className === "live") follow();
