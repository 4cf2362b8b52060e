"""The figures say what the JSON says, and break on nothing that a run can yield."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import matplotlib as mpl
import pytest

from benchmarks.reproduce.figure_layout import across_seeds, apart, factor_ticks, limits_of
from benchmarks.reproduce.figures import svg

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


def texts(drawing: str) -> str:
    return " ".join("".join(node.itertext()) for node in ET.fromstring(drawing).iter() if "text" in node.tag)


def test_losses_are_drawn_with_names_and_crashes(losses: dict) -> None:
    said = texts(svg(losses))
    for name in ("Baseline-Low", "Baseline-High", "Warm-Init", "HDET (full)", "Bayes loss 0.862", MEANT):
        assert name in said
    assert "crash, 3 of 3 seeds" in said
    assert "crash, 1 of 3 seeds" in said
    assert said.count("crash, ") == 2
    assert said.count("(cut at ") == 1, "one of the two panels has something to cut"


def test_learning_rates_are_drawn_with_the_order_in_words(rates: dict) -> None:
    said = texts(svg(rates))
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
def test_losses_that_are_missing_break_nothing(losses: dict, left: str) -> None:
    for block in losses["blocks"]:
        for drawn in block["curves"]:
            if left == "nothing finite":
                for run in drawn["runs"]:
                    run |= {"loss": [None] * len(STEPS), "init": None}
            else:
                drawn["runs"] = drawn["runs"][:1]
    assert ("nothing to draw" in texts(svg(losses))) == (left != "one seed")


@pytest.mark.parametrize("left", ["nothing finite", "no runs"])
def test_learning_rates_that_are_missing_break_nothing(rates: dict, left: str) -> None:
    (block,) = rates["blocks"]
    for run in block["runs"]:
        for part in ("lrs", "factors"):
            run[part] = {group: [None] * len(STEPS) for group in GROUPS}
    if left == "no runs":
        block["order"], block["runs"] = None, []
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
