"""One page of all that ``reproduce`` wrote into a folder: tables beside the paper's, figures, sources.

The page stands alone: it loads nothing and runs no script. Every text of a file is escaped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.reproduce.figure_layout import rate_text, sentence_case

__all__ = ["page"]

Result = Mapping[str, Any]

_FILES = ("table1*.json", "figure2*.json", "figure3*.json", "pretraining*.json")
_TASKS = {
    "feed": "The synthetic feed",
    "kuairand": "The KuaiRand feed",
    "charlm": "A character language model, several epochs",
    "helptexts": "A character language model on Python's help texts",
}
_ABOUT = (
    "The paper on Hyperparameter-Divergent Ensemble Training (HDET, arXiv 2604.24708) trains a "
    "news-feed model in six configurations on eight GPUs, and reports their training losses, which of them "
    "crash, and how the learning rate of each parameter group moves. Here the same experiments are run "
    "at a size that one machine holds, and beside the six stand AutoLR, which is given no learning "
    "rate, and the best plain run of a sweep. The paper's losses are of another feed, another model and "
    "longer runs: compare which runs crash and how the configurations are ordered, not the values."
)
_CAPTIONS = {
    "figure2": "Training loss against steps. Line: median of the seeds; band: all of them; cross: the median "
    "step of the crashes.",
    "figure3": "Learning rate of each parameter group in HDET (full), and its factor on plain OneCycle "
    "(with Eq. 8 chosen, on that alone). "
    "Thick: median; thin: each seed.",
}
_CSS = """
:root { color-scheme: light dark;
  --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --back: #fff; --card: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --back: #0d1117; --card: #151b23 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1140px; padding: 2rem 1.25rem 4rem;
  color: var(--ink); background: var(--back);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.4rem; margin: 3rem 0 .5rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { max-width: 75ch }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; width: 100% }
caption { text-align: left; font-weight: 600; padding: .4rem 0 }
th, td { padding: .4rem .8rem .4rem 0; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line) }
th:first-child { text-align: left; white-space: normal; min-width: 11rem; position: sticky; left: 0;
  background: var(--back) }
thead th { color: var(--soft); font-weight: 500 }
tbody th { font-weight: 600 }
small, .soft, figcaption { color: var(--soft) }
th small { display: block; font-weight: 400 }
figure { margin: 1.5rem 0 }
.figure { overflow-x: auto; background: #fff; border: 1px solid var(--line); border-radius: 8px;
  padding: .5rem }
.figure svg { display: block; width: 100%; min-width: 720px; height: auto }
figcaption { font-size: .92rem; padding-top: .5rem; max-width: 85ch }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .92rem;
  background: var(--card); border-radius: 8px; padding: .8rem 1rem }
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
@media (max-width: 600px) {
  dl { grid-template-columns: 1fr }
  dd { margin-bottom: .5rem }
  th:first-child { min-width: 8.5rem }
}
@media print { .wide, .figure { overflow: visible } .figure svg { min-width: 0 } }
"""


def page(folder: Path) -> Path:
    """Write ``folder``/reproduce.html from the JSON files that lie there; those that do not are left out."""
    results = _results(folder)
    if not results:
        raise FileNotFoundError(
            f"page: folder must hold at least one of {', '.join(_FILES)}, got {folder} with none: "
            "run `python -m benchmarks reproduce table1` first"
        )
    known = [*_TASKS, *sorted({result["task"] for result in results.values()} - _TASKS.keys())]
    sections = [
        _section(task, {name: result for name, result in results.items() if result["task"] == task})
        for task in known
    ]
    title = "The paper's experiments, in small"
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(_ABOUT)}</p>\n"
        f"{''.join(sections)}</main>\n</body>\n</html>\n"
    )
    path = folder / "reproduce.html"
    path.write_text(text, encoding="utf-8")
    return path


def _results(folder: Path) -> dict[str, Result]:
    """What each file of ours holds, by its name; a table before the figures."""
    results: dict[str, Result] = {}
    for pattern in _FILES:
        for file in sorted(folder.glob(pattern)):
            try:
                result = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(f"page: {file} must hold JSON, got {error}: write it again") from error
            if isinstance(result, dict) and result.get("experiment") == "reproduce":
                results[file.stem] = result
    return results


def _section(task: str, results: Mapping[str, Result]) -> str:
    if not results:
        return ""
    caveats = dict.fromkeys(caveat for result in results.values() for caveat in result["caveats"])
    parts = [f"<h2>{escape(_TASKS.get(task, task))}</h2>\n"]
    for name, result in results.items():
        parts.append(f"<h3>{escape(result['title'])}</h3>\n{_unfinished(result)}")
        parts.append(_figure(name, result) if result["name"] in _CAPTIONS else _tables(result))
    parts.append("<h3>What to keep in mind</h3>\n" if caveats else "")
    parts += [f"<p>{escape(caveat)}</p>\n" for caveat in caveats]
    parts.append("<h3>How it was made</h3>\n")
    parts += map(_provenance, _alike(results.values()))
    return "".join(parts)


def _alike(results: Iterable[Result]) -> list[Result]:
    """Results of one machine, day and setting as one, with all their commands."""
    found: dict[str, Result] = {}
    for result in results:
        about = {**result["machine"], "date": result["machine"]["date"][:10]}
        key = repr((about, result["seeds"], result["settings"]))
        commands = [*found.get(key, {}).get("commands", []), result["command"]]
        found[key] = {**result, "machine": about, "commands": commands}
    return list(found.values())


def _unfinished(result: Result) -> str:
    notes = []
    if result.get("missing_runs"):
        notes.append(f"{result['missing_runs']:,} runs are still missing.")
    for run in result.get("failed") or []:
        rate = "" if run["lr"] is None else f" at {rate_text(run['lr'])}"
        notes.append(f"{run['configuration']}{rate}, seed {run['seed']}, failed: {run['error']}")
    return "".join(f"<p><strong>{escape(note)}</strong></p>\n" for note in notes)


def _tables(result: Result) -> str:
    parts = []
    for block in result["blocks"]:
        rates = ", ".join(
            f"{key} {rate_text(block[key])}" for key in ("low", "high") if block.get(key) is not None
        )
        headings = [
            "configuration",
            "learning rate",
            "paper: training loss",
            "training loss",
            "held-out loss",
        ]
        # The language model is the paper's future work: there is nothing of the paper's to stand beside.
        published = any(row["paper"] for row in block["rows"])
        rows = [_row(row, published) for row in block["rows"]]
        parts.append(
            _table(
                f"{sentence_case(block['title'])} ({rates})",
                [h for h in headings if published or not h.startswith("paper")]
                + ["crashed", "time of a run"],
                rows,
            )
        )
    notes = ["Losses are means over seeds ± half of the 95 % confidence interval."]
    if rule := result.get("crash_rule"):
        notes.insert(0, f"† {rule}")
    if any(row["paper"] for block in result["blocks"] for row in block["rows"]):
        notes.append("The paper's runs were at 1e-4 (Baseline-Low) and 9e-4 in either table.")
    if result.get("loss_unit"):
        notes.append(f"Loss: {result['loss_unit']}.")
    parts.append(f'<p class="soft">{escape(" ".join(notes))}</p>\n')
    if sweep := result.get("sweep"):
        parts.append(_sweep(sweep))
    return "".join(parts)


def _row(row: Result, published: bool) -> list[str]:
    dagger = " †" if row["crashed"] else ""
    paper = row["paper"]
    theirs = f"{paper['loss']:.3f}{' †' * paper['crashed']}" if paper else "–"
    return [
        f"{escape(row['configuration'])}<small>{escape(row['description'])}</small>",
        _given(row),
        *([theirs] if published else []),
        _loss(row, "train") + dagger,
        _loss(row, "held_out") + dagger,
        _crashes(row),
        "–" if row["seconds"] is None else f"{row['seconds']:,.1f} s",
    ]


def _given(row: Result) -> str:
    if row["lr"] is not None:
        return rate_text(row["lr"])
    return "none given" if row["seeds"] else "–"


def _sweep(sweep: Result) -> str:
    rows = []
    for row in sweep["rows"]:
        marks = {"tuned_lr": "best", "crash_lr": "lowest that crashes"}
        notes = [text for key, text in marks.items() if _same(sweep.get(key), row["lr"])]
        note = f"<small>{', '.join(notes)}</small>" if notes else ""
        rows.append([rate_text(row["lr"]) + note, _loss(row, "train"), _loss(row, "held_out"), _crashes(row)])
    headings = ["learning rate", "training loss", "held-out loss", "crashed"]
    return _table("The plain baseline over learning rates", headings, rows)


def _same(one: float | None, other: float) -> bool:
    # Two files, or two places of one, may have rounded it differently.
    return one is not None and math.isclose(one, other, rel_tol=1e-3)


def _loss(row: Result, part: str) -> str:
    mean, half = row[part]["mean"], row[part]["half_width"]
    if not row["seeds"]:
        return "not run yet"
    if mean is None:
        return "not finite"
    return f"{mean:.4f}" if half is None else f"{mean:.4f} ± {half:.4f}"


def _crashes(row: Result) -> str:
    step = row.get("crash_step")
    when = f", step {step:,.0f}" if row["crashed"] and step is not None else ""
    return f"{row['crashed']} of {row['seeds']}{when}" if row["seeds"] else "–"


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already; the first of a row is its heading."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    return (
        f'<div class="wide"><table>\n<caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _figure(name: str, result: Result) -> str:
    from benchmarks.reproduce.figures import svg

    # The order's result in words stands in the caption, where it can be read on a small screen.
    drawn = {**result, "title": "", "blocks": [{**block, "order": None} for block in result["blocks"]]}
    drawing = _inline(svg(drawn), name, _CAPTIONS[result["name"]])
    told = [_CAPTIONS[result["name"]], *map(_order, result["blocks"])]
    caption = "".join(f"<p>{escape(text)}</p>" for text in told if text)
    return f'<figure>\n<div class="figure">{drawing}</div>\n<figcaption>{caption}</figcaption>\n</figure>\n'


def _order(block: Result) -> str:
    """The test of the groups' order in words, and how far each group was moved."""
    if not (order := block.get("order")):
        return ""
    moved = {group: size for group, size in order["median_abs_log_factor"].items() if size is not None}
    sizes = ", ".join(f"{group} {100 * size:.2g} %" for group, size in moved.items())
    return f"{sentence_case(block['title'])}: {order['sentence']}" + (
        f" Median move: {sizes}." if sizes else ""
    )


def _inline(drawing: str, name: str, label: str) -> str:
    """An SVG document as an element of a page, whose ids do not meet those of another drawing."""
    own = re.sub(r"[^\w-]", "-", name)
    text = drawing[drawing.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#)|(url\(#)', lambda found: f"{found[0]}{own}-", text)
    box = re.search(r'viewBox="[^"]*"', text)
    inside = text[text.index(">") + 1 :].strip()
    return f'<svg {box[0] if box else ""} role="img" aria-label="{escape(label)}">{inside}'


def _provenance(result: Result) -> str:
    about = result["machine"]
    where = about.get("gpu") or f"{about['cores']} cores of {about['cpu']}"
    facts = {
        "command": "<br>".join(f"<code>{escape(command)}</code>" for command in result["commands"]),
        "machine": escape(f"{where}, {about['platform']}"),
        "versions": escape(f"hdet {about['hdet']}, torch {about['torch']}, Python {about['python']}"),
        "date": escape(about["date"]),
        "seeds": escape(str(result["seeds"])),
        "settings": escape(", ".join(f"{key} {value}" for key, value in result["settings"].items())),
    }
    return f"<dl>{''.join(f'<dt>{key}</dt><dd>{value}</dd>' for key, value in facts.items())}</dl>\n"
