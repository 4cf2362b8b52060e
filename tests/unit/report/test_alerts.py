"""Every kind of alert that a script can wait for, from the engine's own texts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import hdet
from hdet.report.alerts import Alert, Alerts
from tests.browser.histories import opening, rollback, sync
from tests.unit.training import Training


def seen(*lines: dict[str, Any]) -> list[Alert]:
    alerts = Alerts()
    return [alert for line in lines for alert in alerts.see(line)]


@pytest.mark.parametrize(
    ("text", "level", "kind"),
    [
        ("replica 2 left out of the mean: its loss is nan", "error", "replica lost"),
        ("replica 2 is heard, but not as loud: its loss is 9", "warning", "replica unlike the others"),
        ("the probe's loss rose from 1 to 2: no rollback (snapshot='off')", "error", "rollback"),
        ("nothing better since step 3: back to those weights", "info", "restart"),
        ("nothing has improved since step 3", "info", "early end"),
        ("lr/0: 0.3 clamped to the slowest replica's 0.2", "warning", "value at a bound"),
        ("something else", "info", "event"),
    ],
)
def test_an_event_has_a_level(text: str, level: str, kind: str) -> None:
    assert seen(sync(3, events=[text])) == [Alert(40, level, kind, text)]


def test_a_rollback_is_a_warning() -> None:
    (alert,) = seen(rollback(9))
    assert (alert.level, alert.kind, alert.step) == ("warning", "rollback", 100)


def test_a_value_raises_an_alert_when_it_reaches_its_bound() -> None:
    at_bound, inside = sync(0), sync(1)
    at_bound["hyperparameters"][1]["base_after"] = 10.0
    found = seen(opening(), inside, at_bound, at_bound, inside, at_bound)
    assert [alert.kind for alert in found] == ["value at a bound"] * 2
    assert "upper bound, 10" in found[0].text


def test_windows_of_noise_raise_one_alert() -> None:
    noisy = sync(0)
    noisy["horizon"][0]["why"] = "not significant"
    assert [alert.kind for alert in seen(*[noisy] * 5)] == ["probe too noisy"]
    assert seen(noisy, noisy, sync(3), noisy, noisy) == []


def test_training_that_falls_while_held_out_rises() -> None:
    def at(training: float, held_out: float) -> dict[str, Any]:
        line = sync(0, losses=[training])
        line["horizon"][0]["loss_mean"] = held_out
        return line

    found = seen(*(at(2 - 0.1 * i, 1 + 0.1 * i) for i in range(6)))
    assert [alert.kind for alert in found] == ["overfitting"]
    assert seen(*(at(math.nan, 1 + 0.1 * i) for i in range(6))) == []


def test_steps_that_do_not_count_raise_an_alert(tmp_path: Path) -> None:
    """The engine's warnings between syncs are in the history."""
    path = tmp_path / "history.jsonl"
    training = Training(history=path)
    training.run(5)
    training.auto.step()  # no optimizer step since the last
    found = seen(*map(json.loads, path.read_text().splitlines()))
    assert [alert.kind for alert in found] == ["steps not counted"]
    assert hdet.history.read_history(path) == []
