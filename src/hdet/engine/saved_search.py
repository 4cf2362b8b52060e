"""What the saved state of a search must be, before anything of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from hdet import rules
from hdet.engine.cycle import Cycle
from hdet.engine.envelope import refuse_other_run, sound
from hdet.policies.verdict import Verdict
from hdet.schedules import DrawnShape, End, FoundSchedule, Shape, WarmStableDecay, end_of

__all__ = ["check_search"]

_Checked = tuple[Mapping[str, Any], FoundSchedule, End | None]


def check_search(
    caller: str,
    state: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    cycle: Cycle,
    driver: LRScheduler | DrawnShape,
    shape: Shape | None,
    verdict: Verdict,
) -> _Checked:
    """What the engine takes, what was found so far, and where a ``"wsd"`` ends. Raises ValueError for what
    cannot be taken, and changes nothing.

    Args:
        before: how the run was set up that saved it, None where that was not said yet; ``now``: this one.
        cycle, driver, shape, verdict: of the search that is to take it.
    """

    def check() -> _Checked:
        _check_kind(caller, state, driver, shape)
        cooldown = state["cooldown"]
        # A cooldown that was asked for may end after total_steps.
        ends = [end for end in (now["total_steps"], cooldown and cooldown[1]) if end is not None]
        engine = cycle.checked_state(state["engine"], max(ends, default=None))
        _check_numbers(caller, state, driver)
        verdict.check_state(caller, state.get("verdict"))
        found = FoundSchedule.from_json(state["found"], f"{caller}.load_state_dict")
        comes_down = isinstance(shape, WarmStableDecay)
        refuse_other_run(caller, now, before, free={"total_steps"} if comes_down else set())
        end = _end(caller, cooldown, before, now["total_steps"], engine["steps"]) if comes_down else None
        return engine, found, end

    return sound(caller, check)  # type: ignore[no-any-return]


def _end(
    caller: str, cooldown: Any, before: Mapping[str, Any] | None, total_steps: int | None, steps: int
) -> End:
    decay_from, end, height = cooldown
    saved = WarmStableDecay(end, decay_from, height)
    if before is not None:
        planned = before["total_steps"]
    else:  # what was planned is known where no cooldown was asked for since
        planned = end if saved == WarmStableDecay.of(end) else total_steps
    return end_of(caller, saved, planned, total_steps, steps)


def _check_kind(
    caller: str, state: Mapping[str, Any], driver: LRScheduler | DrawnShape, shape: Shape | None
) -> None:
    drawn = "ratios" in state["schedule"]
    if drawn != isinstance(driver, DrawnShape):
        raise ValueError(
            f"{caller}.load_state_dict: schedule must be of the kind it was saved with, a "
            f"{'name' if drawn else 'torch scheduler'}, got a {'torch scheduler' if drawn else 'name'}"
        )
    comes_down = state["cooldown"] is not None
    if drawn and comes_down != isinstance(shape, WarmStableDecay):
        raise ValueError(
            f"{caller}.load_state_dict: schedule must be the one it was saved with, "
            f"{'wsd' if comes_down else 'another than wsd'}, got {type(shape).__name__}"
        )


def _check_numbers(caller: str, state: Mapping[str, Any], driver: LRScheduler | DrawnShape) -> None:
    """Of the schedule, where it is, and where it comes down."""
    groups = len(driver.ratios) if isinstance(driver, DrawnShape) else len(state["lr"])
    for i, lr in enumerate(rules.of_length(caller, "lr", state["lr"], groups)):
        rules.number(caller, f"the learning rate of group {i}", lr, least=0.0)
    if "ratios" in state["schedule"]:
        rules.count(caller, "the schedule's step", state["schedule"]["at"])
        for i, ratio in enumerate(rules.of_length(caller, "ratios", state["schedule"]["ratios"], groups)):
            rules.number(caller, f"the ratio of group {i}", ratio, least=0.0)
    if state["cooldown"] is not None:
        *steps, height = rules.of_length(caller, "cooldown", state["cooldown"], 3)
        for step in steps:
            if step is not None:
                rules.count(caller, "cooldown", step)
        rules.number(caller, "the height it comes down from", height, least=0.0)
