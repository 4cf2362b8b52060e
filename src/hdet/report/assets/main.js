// Where runs come from: embedded in the page, dropped onto it, or followed while they train.
"use strict";

const RETRY_MS = 1000;

function takeTexts(files) {
  for (const { name, text } of files) state.runs.push(runOfText(name, text));
  draw();
}

async function takeFiles(files) {
  const read = [...files].map(async (file) => ({ name: file.name, text: await file.text() }));
  takeTexts(await Promise.all(read));
}

function listenToDrops() {
  const over = (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  };
  const leave = () => document.body.classList.remove("dropping");
  document.addEventListener("dragover", over);
  document.addEventListener("dragleave", leave);
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    leave();
    takeFiles(event.dataTransfer.files);
  });
  byId("open").addEventListener("change", (event) => takeFiles(event.target.files));
}

function listenToControls() {
  byId("all-steps").addEventListener("click", selectAll);
  byId("focus-run").addEventListener("change", (event) => {
    state.focus = state.runs[Number(event.target.value)];
    draw();
  });
  byId("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    setTheme(event.matches ? "dark" : "light");
    draw();
  });
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
}

// ---------------------------------------------------------------------- live

/** Ask for what is new, for good: the server answers when there is something, or after a while with nothing. */
async function follow() {
  const token = new URLSearchParams(location.search).get("token") || "";
  let [epoch, cursor] = ["", 0];
  for (;;) {
    try {
      const asked = new URLSearchParams({ epoch, cursor: String(cursor), token });
      const answer = await fetch(`records?${asked}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const told = await answer.json();
      if (told.epoch !== epoch) startAgain(told.runs);
      [epoch, cursor] = [told.epoch, told.cursor];
      for (const [i, lines] of Object.entries(told.lines)) state.runs[i].add(lines);
      for (const [i, about] of told.runs.entries())
        Object.assign(state.runs[i], { told: about.total, torn: about.torn, exists: about.exists });
      say("live", liveText(told));
      if (Object.keys(told.lines).length) draw();
    } catch (error) {
      say("lost", "connection lost, trying again");
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }
}

function startAgain(runs) {
  const shown = new Map(state.runs.map((run) => [run.path, run.shown]));
  state.runs = runs.map((about) => Object.assign(new Run(about), { shown: shown.get(about.path) ?? true }));
  draw();
}

function liveText(told) {
  const missing = told.runs.filter((about) => !about.exists).map((about) => about.path);
  if (missing.length) return `live: waiting for ${missing.join(", ")}`;
  const facts = state.runs.map((run) => factsOf(run.lines));
  if (facts.length && facts.every((one) => one.ended)) return "live: the run has ended";
  return facts.some((one) => one.steps) ? `live: step ${count(Math.max(...facts.map((f) => f.steps)))}` : "live: no sync yet";
}

function say(kind, text) {
  const chip = byId("live");
  chip.hidden = false;
  chip.dataset.kind = kind;
  chip.textContent = text;
}

// ---------------------------------------------------------------------- begin

function begin() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  listenToDrops();
  listenToControls();
  const embedded = JSON.parse(byId("data").textContent);
  state.runs = embedded.runs.map((about) => {
    const run = new Run(about);
    const { torn } = about;
    run.add(about.lines);
    run.torn = torn;
    return run;
  });
  draw();
  if (embedded.live) follow();
}

begin();
