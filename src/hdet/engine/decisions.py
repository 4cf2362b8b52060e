"""What every policy makes of a sync, one after the other, from what all ranks have gathered."""

from __future__ import annotations

from collections.abc import Sequence

from hdet.engine.attendance import Attendance
from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import GradientSharing
from hdet.engine.sync import Gathered
from hdet.policies.base import Decided, Policy, Seen

__all__ = ["Decisions"]


class Decisions:
    """The policies' turns.

    Args:
        policies: in their order: one that undoes a window comes before those that judge by it.
        fan_out: whose values stand where.
        sharing: which ranks are one arm.
        attendance: who is heard.
    """

    def __init__(
        self, policies: Sequence[Policy], fan_out: FanOut, sharing: GradientSharing, attendance: Attendance
    ) -> None:
        self._policies = policies
        self._fan_out = fan_out
        self._sharing = sharing
        self._attendance = attendance
        #: By how much what was moved at the last sync should change the loss of the averaged model.
        self.explained = 0.0

    def __call__(
        self, step: int, total_steps: int | None, judging: Sequence[Policy], gathered: Gathered
    ) -> Decided:
        """Every policy in turn. One that does not judge at this sync says what stands where; so does one for
        which it is void, because a policy before it has undone the window."""
        rows = dict(zip(judging, gathered.rows, strict=True))
        losses = self._sharing.by_arm(gathered.losses)
        decided: list[Decided] = []
        for policy in self._policies:
            levels = self._fan_out.levels_of(policy.axes)
            undone = any(earlier.void for earlier in decided) or not self._attendance.anybody
            if policy in rows and not undone:
                found = rows[policy], gathered.training
                seen = Seen(step, total_steps, levels, losses, *found, self.explained)
                with self._fan_out.held(policy.axes):
                    decided.append(policy.decide(seen))
            else:
                decided.append(policy.observe(levels))
                if policy in rows:
                    policy.missed(step)
        whole = Decided.of_all(decided)
        # A window that is undone is gone through again, from where it was before that move.
        self.explained = whole.explained + (self.explained if whole.went_back else 0.0)
        return whole
