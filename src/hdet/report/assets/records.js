// A history's text as what it says: lines parsed, torn ones counted, many of them thinned. records.py does the same.
"use strict";

const LIMIT = 1000;

/** Every line while they are few, then every 2nd, 4th, …: what is kept stays evenly spaced. */
class Sieve {
  constructor(limit) {
    Object.assign(this, { limit, stride: 1, seen: 0, kept: [] });
  }

  add(index, record) {
    const number = this.seen++;
    if (number % this.stride) return;
    this.kept.push({ index, number, record });
    while (this.kept.length > this.limit) {
      this.stride *= 2;
      this.kept = this.kept.filter((kept) => kept.number % this.stride === 0);
    }
  }
}

/** Whether a line is a note, or has an event or a rollback. */
function isMarked(record) {
  if ("kind" in record || listOf(record.events).length) return true;
  return listOf(record.horizon).some((seen) => seen && seen.action === "back");
}

const listOf = (value) => (Array.isArray(value) ? value : []);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** One run: what is known of its file, and its lines. */
class Run {
  constructor(about) {
    Object.assign(this, { name: about.name, path: about.path || about.name, shown: true });
    this.clear();
    this.torn = about.torn || 0;
    this.told = about.total; // how many lines the file has, where whoever thinned them told
  }

  clear() {
    Object.assign(this, { plain: new Sieve(LIMIT), marked: new Sieve(LIMIT), total: 0, torn: 0, last: null });
    this.cache = null;
  }

  /** Whole lines of text. A line that is no JSON object was cut by a crash, and is counted. */
  add(lines) {
    for (const line of lines) {
      if (!line.trim()) continue;
      let record = null;
      try {
        record = JSON.parse(line);
      } catch {
        record = null;
      }
      if (isObject(record)) this.take(record);
      else this.torn += 1;
    }
    this.cache = null;
    return this;
  }

  take(record) {
    (isMarked(record) ? this.marked : this.plain).add(this.total, record);
    this.last = { index: this.total, record };
    this.total += 1;
  }

  get lines() {
    if (!this.cache) {
      const kept = new Map();
      for (const one of [...this.plain.kept, ...this.marked.kept, ...(this.last ? [this.last] : [])])
        kept.set(one.index, one.record);
      this.cache = [...kept.keys()].sort((a, b) => a - b).map((index) => kept.get(index));
    }
    return this.cache;
  }

  get syncs() {
    return this.lines.filter((line) => !("kind" in line));
  }

  /** The last opening: a file holds one for every time the run was started. */
  get opening() {
    return this.lines.filter((line) => line.kind === "run").pop() || {};
  }

  /** How many lines there were, of which some may not be drawn. */
  get whole() {
    return Math.max(this.told || 0, this.total);
  }
}

/** A file's text; what follows its last line end was cut by a crash. */
function runOfText(name, text) {
  const lines = text.split("\n");
  const rest = lines.pop();
  const run = new Run({ name: name.replace(/\.jsonl?$/, ""), path: name }).add(lines);
  if (rest.trim()) run.torn += 1;
  return run;
}
