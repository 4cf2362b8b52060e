"""What the page's charts show, before anything is drawn; tests/browser draws it."""

from __future__ import annotations

from typing import Any

import pytest

from hdet.report.charts import Run, charts, decisions
from hdet.report.verdict import facts_of
from tests.browser.histories import fanned_out, nothing_finite, opening, rollback, sync, whole

Lines = list[dict[str, Any]]


def of(*histories: Lines) -> dict[str, dict[str, Any]]:
    runs = [Run(i, f"run {i}", facts_of(lines), lines) for i, lines in enumerate(histories)]
    return {chart["title"]: chart for chart in charts(runs)}


@pytest.mark.parametrize("history", [[], [opening()], nothing_finite()[1:6]])
def test_what_a_history_has_nothing_for_is_not_drawn(history: Lines) -> None:
    assert of(history) == {}


def test_a_caption_tells_only_of_what_is_drawn() -> None:
    calm = of([opening(), *(sync(i) for i in range(20))])["Held-out loss"]
    assert not any("mark" in series for series in calm["series"])
    assert "ring" not in calm["caption"]
    assert "Crosses" not in calm["caption"]
    eventful = of(whole())["Held-out loss"]
    assert {series.get("mark") for series in eventful["series"]} == {None, "kept", "back"}
    assert "The ring:" in eventful["caption"]
    assert "Crosses:" in eventful["caption"]
    assert "Dotted" not in of(whole(), whole())["Held-out loss"]["caption"]


def test_a_caption_names_the_runs_that_it_is_true_of() -> None:
    both = of(whole(), fanned_out(rounds=20))
    assert both["Held-out loss"]["caption"].startswith("run 0: each point is the average of a window")
    assert both["Learning rate"]["caption"].startswith("run 0: each step of the line is a decision")
    assert of(whole())["Learning rate"]["caption"].startswith("Each step of the line is a decision")


def test_training_and_held_out_losses_never_share_an_axis() -> None:
    alone = [opening(), *(sync(i, horizon=[], held_out_mean=None) for i in range(5))]
    assert [series["run"] for series in of(alone)["Training loss"]["series"]] == [0]
    both = of(alone, whole())
    assert "Training loss" not in both
    assert {series["run"] for series in both["Held-out loss"]["series"]} == {1}


def test_all_charts_have_the_same_steps() -> None:
    drawn = of(whole(), fanned_out(rounds=20))
    assert {chart["last"] for chart in drawn.values()} == {2000}


def test_the_ring_is_at_the_rate_found() -> None:
    lines = whole()
    rate = next(line for line in lines if line.get("step") == 700)["hyperparameters"][0]["base_before"]
    lines[-1]["weights"]["rate"] = rate
    (ring,) = (one for one in of(lines)["Learning rate"]["series"] if one.get("mark") == "kept")
    assert (ring["x"], ring["y"]) == ([700], [rate])


@pytest.mark.parametrize(("kind", "loss"), [("mean", "loss_mean"), ("end", "loss_end")])
def test_the_ring_is_at_the_loss_of_what_was_returned(kind: str, loss: str) -> None:
    lines = whole()
    lines[-1]["weights"]["kind"] = kind
    (ring,) = (one for one in of(lines)["Held-out loss"]["series"] if one.get("mark") == "kept")
    assert ring["y"] == [next(line for line in lines if line.get("step") == 700)["horizon"][0][loss]]


def test_a_schedule_that_ends_at_nothing_leaves_the_others_room() -> None:
    low = [opening(), *(sync(i, horizon=[]) for i in range(5))]
    for line, rate in zip(low[1:], (1e-3, 1e-3, 1e-4, 1e-6, 1e-9), strict=True):
        line["hyperparameters"][0] |= {"base_before": rate, "base_after": rate}
    (line,) = of(low)["Learning rate"]["series"]
    assert min(y for y in line["y"] if y is not None) == 1e-6


def test_replicas_fan_out_around_the_base_and_come_together_at_every_sync() -> None:
    history = fanned_out(rounds=3)
    replicas = of(history)["Replicas' learning rates: run 0"]["series"]
    assert [one["name"] for one in replicas] == [f"run 0: replica {r}" for r in range(4)]
    assert {one["run"] for one in replicas} == {0}, "a run has one colour"
    assert len({one["opacity"] for one in replicas}) == 4
    rates = [line["hyperparameters"][0] for line in history if "kind" not in line]
    for r, one in enumerate(replicas):
        assert one["x"] == [0, 1, 9, 10, 10, 11, 19, 20, 20, 21, 29, 30]
        assert one["y"][3::4] == pytest.approx([rate["base_before"] for rate in rates])
        assert one["y"][4::4] == pytest.approx([rate["base_after"] for rate in rates[:-1]])
        begins, ends = one["y"][::4], one["y"][3::4]
        between = [0.1 * begin + 0.9 * end for begin, end in zip(begins, ends, strict=True)]
        ratios = [rate["values"][r] / rate["base_before"] for rate in rates]
        assert one["y"][2::4] == pytest.approx([b * ratio for b, ratio in zip(between, ratios, strict=True)])


def test_a_run_that_was_started_again_begins_a_new_line() -> None:
    again = [sync(0), sync(1), sync(2), sync(1), sync(2)]
    line = of(again)["Held-out loss"]["series"][0]
    assert line["x"] == [10, 20, 30, 20, 20, 30]
    assert line["y"][3] is None


def test_decisions_have_reasons() -> None:
    lines = whole()
    told = {
        step: text for step, _, text in decisions(Run(0, "run", facts_of(lines), lines)) if "rate" in text
    }
    assert told[20] == (
        "The rate rises, from 1.4e-5 to 2e-5: the lag is -0.9 and 2.5 is tolerated, so the rate is what "
        "limits progress."
    )
    assert (
        told[100] == "Rollback to the start of the window, at a lower rate: the loss rose along the window."
    )
    assert told[300].startswith("The rate stays: the averaged weights made no progress")
    again = sync(3, events=["nothing better since step 20: from the beginning, below a third of the rate"])
    ((_, _, text), *_) = decisions(Run(0, "run", facts_of([again]), [again]))
    assert text.startswith("Nothing better since step 20: from the beginning")
    assert rollback(3)["horizon"][0]["action"] == "back"
