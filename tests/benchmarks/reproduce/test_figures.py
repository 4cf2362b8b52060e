"""The figures and the page say what the JSON says, stand alone, and break on nothing that a run can yield."""

from __future__ import annotations

import copy
import json
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import pytest

from benchmarks.reproduce.figure_layout import across_seeds, apart, factor_ticks, limits_of
from benchmarks.reproduce.figures import figure2, figure3, svg
from benchmarks.reproduce.page import page

GROUPS = ["embedding", "no_decay", "non_embedding", "transformer"]
STEPS = list(range(10, 201, 10))
MEANT = "<b>&\"meant\"</b> 5 $ or 'more' $"


def head(name: str, task: str = "feed") -> dict:
    return {
        "experiment": "reproduce",
        "name": name,
        "title": f"{name} of the paper {MEANT}",
        "command": f"python -m benchmarks reproduce {name}",
        "machine": {
            **{"hdet": "0.1.0", "torch": "2.13.0", "python": "3.12.3", "platform": "Linux x86_64"},
            **{"cpu": "a cpu", "cores": 2, "device": "cpu", "date": "2026-11-15T06:18:11+00:00"},
        },
        "task": task,
        "scale": "cpu",
        "seeds": 3,
        "caveats": [f"A caveat {MEANT}"],
        "settings": {"replicas": 8, "steps": 200},
        "reference": {"base_rate_loss": 1.294, "bayes_loss": 0.8623},
        "missing_runs": 0,
        "failed": [],
    }


def curve(configuration: str, losses: list[list[float | None]], crash_steps: list[int]) -> dict:
    runs = [{"seed": s, "steps": STEPS, "loss": loss, "init": 2.08} for s, loss in enumerate(losses)]
    middle = sorted(crash_steps)[len(crash_steps) // 2] if crash_steps else None
    crash = {"crashed": len(crash_steps), "crash_step": middle}
    return {"configuration": configuration, "lr": 1e-4, "seeds": len(losses), **crash, "runs": runs}


def falling(to: float) -> list[list[float | None]]:
    return [[to + (2 - to) * math.exp(-s / 40) + seed / 100 for s in STEPS] for seed in range(3)]


@pytest.fixture
def losses() -> dict:
    gone: list[list[float | None]] = [[*loss[:8], 1e9, *[None] * 11] for loss in falling(1.1)]
    curves = [
        curve("Baseline-Low", falling(1.2), []),
        curve("Baseline-High", gone, [85, 90, 95]),
        curve("Warm-Init", [*falling(1.0)[:2], gone[0]], [90]),
        curve("HDET (full)", falling(0.9), []),
    ]
    block = {"name": "paper", "title": f"the paper's rates {MEANT}", "low": 1e-4, "high": 9e-4}
    calm = {**block, "curves": [curves[0], curves[3]]}
    return {**head("figure2"), "blocks": [calm, {**block, "name": "crash", "curves": curves}]}


@pytest.fixture
def rates() -> dict:
    def run(seed: int) -> dict:
        factors = {g: [1 + s * (i - 1.5 + seed / 9) / 1e5 for s in STEPS] for i, g in enumerate(GROUPS)}
        lrs = {group: [1e-3 * f for f in some] for group, some in factors.items()}
        return {"seed": seed, "steps": STEPS, "lrs": lrs, "factors": factors}

    order = {
        "sentence": f"The published order stood in 1 of 3 seeds {MEANT}.",
        "median_abs_log_factor": dict.fromkeys(GROUPS, 0.0031),
    }
    block = {"title": "the paper's learning rates", "high": 9e-4, "order": order}
    plain = {"steps": STEPS, "lr": [1e-3] * len(STEPS)}
    blocks = [{**block, "plain": plain, "runs": [run(seed) for seed in range(3)]}]
    return {**head("figure3"), "groups": GROUPS, "control_from": 70, "blocks": blocks}


@pytest.fixture
def table() -> dict:
    names = ["Baseline-Low", "Baseline-High", "HDET (full)", "AutoLR"]
    rows = [
        {
            **{"configuration": name, "description": f"described {MEANT}", "seeds": 3},
            "lr": None if name == "AutoLR" else 9e-4,
            "paper": None if name == "AutoLR" else {"loss": 3.277 + place / 10, "crashed": place == 1},
            "train": {"mean": 1.2345 + place, "half_width": 0.0123},
            "held_out": {"mean": 1.5432 + place, "half_width": None},
            **{"crashed": 2 * (place == 1), "crash_step": 231 if place == 1 else None, "seconds": 12.1},
        }
        for place, name in enumerate(names)
    ]
    gone = {**rows[1], "train": {"mean": None, "half_width": None}, "crashed": 3}
    missing = {**rows[0], "seeds": 0, "train": gone["train"], "held_out": gone["train"], "seconds": None}
    block = {"name": "paper", "title": "the paper's learning rates", "low": 1e-4, "high": 9e-4}
    sweep = {"rows": [{**rows[0], "lr": 1e-2}, {**gone, "lr": 3.162}], "tuned_lr": 1e-2, "crash_lr": 3.162}
    blocks = [{**block, "rows": rows}, {**block, "name": "crash", "rows": [missing, gone]}]
    return {**head("table1"), "sweep": sweep, "blocks": blocks}


def texts(drawing: str) -> str:
    return " ".join("".join(node.itertext()) for node in ET.fromstring(drawing).iter() if "text" in node.tag)


def test_losses_are_drawn_with_names_and_crashes(losses: dict, tmp_path: Path) -> None:
    drawn, image = figure2(losses, tmp_path / "new" / "figure2-1.5")
    assert (drawn.name, image.name) == ("figure2-1.5.svg", "figure2-1.5.png")
    assert image.read_bytes().startswith(b"\x89PNG")
    said = texts(drawn.read_text(encoding="utf-8"))
    for name in ("Baseline-Low", "Baseline-High", "Warm-Init", "HDET (full)", "Bayes loss 0.862", MEANT):
        assert name in said
    assert "crash, 3 of 3 seeds" in said
    assert "crash, 1 of 3 seeds" in said
    assert said.count("crash, ") == 2
    assert said.count("(cut at ") == 1, "one of the two panels has something to cut"


def test_learning_rates_are_drawn_with_the_order_in_words(rates: dict, tmp_path: Path) -> None:
    drawn, image = figure3(rates, tmp_path / "figure3")
    assert image.exists()
    said = texts(drawn.read_text(encoding="utf-8"))
    for name in (*GROUPS, "OneCycle", "auto-LR begins", "stood in 1 of 3 seeds", "×1"):
        assert name in said


def test_the_same_result_gives_the_same_bytes_whatever_the_user_has_set(losses: dict, rates: dict) -> None:
    before = svg(losses), svg(rates)
    with mpl.rc_context(
        {"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red", "axes.linewidth": 9}
    ):
        mine = dict(mpl.rcParams)
        assert (svg(losses), svg(rates)) == before
        assert dict(mpl.rcParams) == mine
    assert "2026" not in before[0], "no date"


@pytest.mark.parametrize("left", ["nothing finite", "one seed"])
def test_losses_that_are_missing_break_nothing(losses: dict, left: str, tmp_path: Path) -> None:
    for block in losses["blocks"]:
        for drawn in block["curves"]:
            if left == "nothing finite":
                for run in drawn["runs"]:
                    run |= {"loss": [None] * len(STEPS), "init": None}
            else:
                drawn["runs"] = drawn["runs"][:1]
    figure2(losses, tmp_path / "figure2")
    assert ("nothing to draw" in texts(svg(losses))) == (left != "one seed")


@pytest.mark.parametrize("left", ["nothing finite", "no runs"])
def test_learning_rates_that_are_missing_break_nothing(rates: dict, left: str, tmp_path: Path) -> None:
    (block,) = rates["blocks"]
    for run in block["runs"]:
        for part in ("lrs", "factors"):
            run[part] = {group: [None] * len(STEPS) for group in GROUPS}
    if left == "no runs":
        block["order"], block["runs"] = None, []
    figure3(rates, tmp_path / "figure3")
    assert ("nothing to draw" in texts(svg(rates))) == (left == "no runs")


def test_a_seed_that_left_for_infinity_counts_as_the_highest() -> None:
    found = across_seeds([([1, 2], [1.0, None]), ([1, 2], [2.0, 5.0]), ([1, 2], [3.0, 4.0])])
    assert found.middle == [2.0, 5.0]
    assert found.low == [1.0, 4.0]
    assert found.high == [3.0, math.inf]
    assert found.before(1.9, math.nan) == 2.0
    assert found.before(0.5, 7.0) == 7.0


def test_a_diverged_loss_does_not_flatten_the_rest() -> None:
    calm = across_seeds([([1, 2, 3], [2.0, 1.5, 1.0])])
    wild = across_seeds([([1, 2, 3], [2.0, 1e12, None])])
    alone = limits_of([calm], [2.0], [])
    both = limits_of([calm, wild], [2.0], [])
    assert alone is not None
    assert both is not None
    assert (alone.is_cut, both.is_cut) == (False, True)
    assert both.low <= 1.0
    assert 2.0 <= both.high <= 2.5
    assert limits_of([], [2.0], [1.0]) is None


def test_names_do_not_overlap() -> None:
    for wanted in [[0.5] * 4, [0.0, 0.01, 0.99, 1.0], [1.0] * 5, [0.9, 0.1, 0.5], []]:
        heights = [0.08 + 0.02 * i for i in range(len(wanted))]
        places = apart(wanted, heights)
        by_place = sorted(zip(places, heights, strict=True))
        for (below, one), (above, other) in pairwise(by_place):
            assert above - below >= (one + other) / 2 - 1e-9
        assert all(place + height / 2 <= 1 + 1e-9 for place, height in by_place)


def test_factors_are_read_against_one() -> None:
    for largest in [1e-4, 3e-3, 0.05, 0.25, 0.5, 1.0, 1.6]:
        ticks = factor_ticks(largest)
        assert 1.0 in ticks
        assert len([tick for tick in ticks if abs(math.log(tick)) <= 1.1 * largest]) >= 3


class Checker(HTMLParser):
    """Every element closed in its turn; ids, what would be loaded, and the visible text kept."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.ids += [str(value)] if name == "id" else []
            self.loads += [str(value)] if name in ("src", "srcset", "data") or name.endswith("href") else []
            self.loads += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.loads += re.findall(r"url\(([^)]*)\)|@import (\S+)", data)
        else:
            self.text += data + " "


@pytest.fixture
def folder(losses: dict, rates: dict, table: dict, tmp_path: Path) -> Path:
    lm = {**copy.deepcopy(table), **head("pretraining", "charlm")}
    for block in lm["blocks"]:
        for row in block["rows"]:
            row["paper"] = None
    files = {"figure2": losses, "figure3": rates, "table1": table, "pretraining": lm}
    files["figure2-kuairand"] = {**losses, "task": "kuairand", "missing_runs": 7}
    for name, result in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    return tmp_path


def test_the_page_is_well_formed_and_stands_alone(folder: Path) -> None:
    checked = Checker(page(folder).read_text(encoding="utf-8"))
    assert checked.open == []
    assert checked.tags >= {"table", "figure", "svg", "figcaption", "dl"}
    assert not checked.tags & {"script", "link", "iframe", "img"}
    assert checked.loads
    assert all(target.startswith("#") for target in checked.loads)
    assert len(set(checked.ids)) == len(checked.ids), "two drawings share an id"
    assert {target[1:] for target in checked.loads} <= set(checked.ids)


def test_the_page_holds_every_number_of_the_table(folder: Path, table: dict) -> None:
    said = Checker(page(folder).read_text(encoding="utf-8")).text
    for block in table["blocks"]:
        for row in block["rows"]:
            means = (row["train"], row["held_out"]) if row["seeds"] else ()
            for part in means:
                assert ("not finite" if part["mean"] is None else f"{part['mean']:.4f}") in said
            assert row["configuration"] in said
            assert row["paper"] is None or f"{row['paper']['loss']:.3f}" in said
    for text in (
        "2.2345 ± 0.0123 †",
        "3.377 †",
        "2 of 3, step 231",
        "not run yet",
        "none given",
        "9e-4",
        "12.1 s",
    ):
        assert text in said
    for text in ("python -m benchmarks reproduce table1", "a cpu", "2026-11-15", "7 runs are still missing"):
        assert text in said


def test_the_page_escapes_what_the_files_say(folder: Path) -> None:
    text = page(folder).read_text(encoding="utf-8")
    checked = Checker(text)
    assert "b" not in checked.tags
    for place in ("A caveat", "table1 of the paper", "described", "1 of 3 seeds"):
        assert f"{place} {MEANT}" in checked.text
