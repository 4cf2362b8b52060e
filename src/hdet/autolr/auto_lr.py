"""AutoLR: training without a learning rate.

Of the optimizer's ``lr`` only the ratios between groups are read. The first steps are taken at next to no
learning rate and tell which one is usual for such weights; from then on the controller moves it, toward that
one and by what windows show. Several optimizers are one run, with one window, one probe and one rollback, and
a factor for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hdet.autolr.rule import HorizonController
from hdet.autolr.search import Search, take_optimizers
from hdet.history import History
from hdet.loop.announce import Event
from hdet.probes import Probe
from hdet.removed import explains_calls
from hdet.replicas import ProcessGroup, replicas_of

__all__ = ["AutoLR"]


class AutoLR(Search):
    """Finds the learning rate while it trains; call :meth:`step` once after every ``optimizer.step()``.

    It is given none and judges by held-out batches. The paper's auto-LR, a vote of replicas on a rate that is
    given, is :class:`hdet.OneCycleAutoLR`.

    It is a torch scheduler: frameworks step it, save it and log its :meth:`get_last_lr`. It must be
    stepped at every optimizer step, not once an epoch, and raises where it is not.

    Memory on the device, beyond training: one copy of the trained weights, the window's mean. The host holds
    the best weights so far, those training began with, and weights, optimizer state and buffers as the window
    found them. Time: next to nothing between windows; at the end of each, a forward pass at the mean for
    every probe batch, and one at the last iterate for some.

    The learning rate moves until the schedule decays (for ``"wsd"`` the last quarter of the run, for any
    other as soon as it is below 70 % of its peak). Windows are measured, and explosions rolled back, to the
    last step. :meth:`finish_` loads the best weights seen.

    Args:
        optimizer: any torch optimizer, or a list of them that step together (Muon and AdamW, say). Of their
            learning rates only the ratios between the groups of one count.
        probe: measures the loss on batches that are not trained on.
        total_steps: S, or None to train open-ended until :meth:`cooldown` is called.
        schedule: ``"wsd"`` (constant, then linearly to zero in the last quarter), ``"cosine"``,
            ``"onecycle"``, or a torch scheduler on this (one) optimizer, of which the curve is kept.
        patience: so often it goes back to the best weights (or with time enough left to the first ones), at a
            third of the rate, without an improvement; then it decays and ends, whatever is
            left of ``total_steps``. None never goes back.
        offload: keep the copies for a rollback, and the best weights, in the host's (pinned) memory; False
            keeps them on the device, which is faster and takes its memory. None: on the device while they
            take at most a quarter of what training leaves free there, else with the host.
        process_group: the replicas; the default group if None, and this process alone without one.
        history: a JSONL file to which rank 0 appends every :class:`~hdet.history.SyncRecord`; or a
            callable that gets each line (:class:`hdet.integrations.trackers.Tracker`); or a list of both.
        on_event: called with every :class:`~hdet.loop.announce.Event` (moved, best, back, lost, end) at the
            end of its step, on every rank. What follows the weights must go back with them:
            ``examples/ema.py``.
        rule: for experts: the constants of the rule that moves the learning rate. The defaults are meant for
            everything.

    >>> import torch
    >>> weight = torch.nn.Linear(8, 1)
    >>> data = torch.randn(200, 32, 8)
    >>> loss_of = lambda x: (weight(x) - x.sum(1, keepdim=True)).square().mean()
    >>> optimizer = torch.optim.SGD(weight.parameters(), lr=1e-8)  # not used
    >>> auto = AutoLR(optimizer, total_steps=160, probe=Probe(loss_of, data[160:], model=weight))
    >>> for x in data[:160]:
    ...     loss = loss_of(x)
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     record = auto.step()
    >>> auto.finished, auto.get_last_lr(), auto.finish_().kind
    (True, [0.0], 'end')
    """

    @explains_calls
    def __init__(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        probe: Probe,
        total_steps: int | None = None,
        schedule: Literal["wsd", "cosine", "onecycle"] | LRScheduler = "wsd",
        patience: int | None = 3,
        offload: bool | None = None,
        process_group: ProcessGroup | None = None,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
        rule: HorizonController | None = None,
    ) -> None:
        every = take_optimizers("AutoLR", optimizer)
        model = getattr(probe, "model", None)
        replicas = replicas_of("AutoLR", every, model=model, process_group=process_group)
        super().__init__(
            every,
            replicas,
            probe=probe,
            total_steps=total_steps,
            schedule=schedule,
            rule=rule,
            patience=patience,
            offload=offload,
            history=history,
            on_event=on_event,
            gradients=replicas.gradients or "all",
        )
