"""What the page's charts draw, from their scripts alone; tests/browser draws it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from hdet.report.page import _SCRIPTS, _asset
from hdet.report.verdict import facts_of, sentence
from tests.browser.histories import fanned_out, nothing_finite, opening, sync, whole

#: All but the page itself, which needs a browser.
SCRIPTS = _SCRIPTS[: _SCRIPTS.index("page")]
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")


def drawn(chart: str, *histories: list[dict[str, Any]]) -> Any:
    """What a function of the page makes of histories, the first in focus."""
    lines = [[json.dumps(line) for line in history] for history in histories]
    code = [_asset(f"{name}.js") for name in SCRIPTS]
    code += [f"const runs = {json.dumps(lines)}.map((each, i) => new Run({{name: `run ${{i}}`}}).add(each));"]
    code += ["runs.forEach((run, i) => Object.assign(run, { index: i, facts: factsOf(run.lines) }));"]
    code += ["const theme = { name: 'light', ink: 'black', line: 'grey' };"]
    code += [f"console.log(JSON.stringify({chart}(new Scene(runs, runs[0], theme))));"]
    done = subprocess.run(
        ["node", "-"], input="\n".join(code), check=True, capture_output=True, text=True, timeout=60
    )
    return json.loads(done.stdout)


@needs_node
@pytest.mark.parametrize(
    "history",
    [whole(), nothing_finite(), fanned_out(), [sync(0, horizon=[], held_out_mean=None)], [opening()]],
)
def test_the_page_says_what_python_says(history: list[dict[str, Any]]) -> None:
    assert drawn("(({ focus }) => sentence(focus.facts))", history) == sentence(facts_of(history))


@needs_node
def test_replicas_fan_out_around_the_base_and_come_together_at_every_sync() -> None:
    history = fanned_out(rounds=3)
    chart = drawn("fanOutChart", history)
    *replicas, base = chart["data"]
    assert [trace["name"] for trace in chart["data"]] == [*(f"replica {r}" for r in range(4)), "base rate"]
    syncs = [line for line in history if "kind" not in line]
    rates = [line["hyperparameters"][0] for line in syncs]
    for r, trace in enumerate(replicas):
        assert trace["x"] == [0, 1, 9, 10, 10, 11, 19, 20, 20, 21, 29, 30]
        assert trace["y"][3::4] == pytest.approx([rate["base_before"] for rate in rates])
        assert trace["y"][4::4] == pytest.approx([rate["base_after"] for rate in rates[:-1]])
        begins, ends = trace["y"][::4], trace["y"][3::4]
        between = [0.1 * begin + 0.9 * end for begin, end in zip(begins, ends, strict=True)]
        ratios = [rate["values"][r] / rate["base_before"] for rate in rates]
        assert trace["y"][2::4] == pytest.approx(
            [b * ratio for b, ratio in zip(between, ratios, strict=True)]
        )
    assert base["y"][-1] == rates[-1]["base_after"]
    assert [shape["x0"] for shape in chart["layout"]["shapes"]] == [10, 20, 30]
    assert "type" not in chart["layout"]["yaxis"], "on a logarithmic axis a ninth is not seen"


@needs_node
def test_over_the_base_rate_every_round_has_all_levels() -> None:
    chart = drawn("fanRatioChart", fanned_out(rounds=20))
    levels = [trace["y"][2::4] for trace in chart["data"]]
    assert levels == [trace["y"][1::4] for trace in chart["data"]]
    for of_round in zip(*levels, strict=True):
        assert sorted(of_round) == pytest.approx([8 / 9, 26 / 27, 28 / 27, 10 / 9])
    assert len(set(levels[0])) == 4, "reassigned"
    assert all(trace["y"][::4] == trace["y"][3::4] == [1] * 20 for trace in chart["data"])
    assert chart["layout"]["xaxis"]["range"] == [0, 80]


@needs_node
def test_of_several_runs_the_one_that_fans_out_is_drawn() -> None:
    chart = drawn("fanOutChart", whole(), fanned_out(rounds=3))
    assert chart["layout"]["yaxis"]["title"]["text"] == "run 1: learning rate"
    assert drawn("fanOutChart", whole()) is None
    assert drawn("fanRatioChart", [opening()]) is None


@needs_node
def test_a_run_that_was_started_again_begins_a_new_line() -> None:
    again = [line for line in fanned_out(rounds=3) if "kind" not in line]
    for chart in ("fanOutChart", "fanRatioChart"):
        trace = drawn(chart, [*again, *again[1:]])["data"][0]
        cut = trace["y"].index(None)
        assert (trace["x"][cut - 1], trace["x"][cut], trace["x"][cut + 1]) == (30, 20, 20)
