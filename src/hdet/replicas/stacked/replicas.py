"""N replicas in one process on one device: each parameter group is one matrix, with a row for each replica.

A training step is one forward and one backward pass of all replicas at once (``torch.vmap``), which on a
device that one small model leaves idle costs little more than one replica's. Nothing is communicated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from hdet.replicas.averaging import distinct_tensors
from hdet.replicas.base import Mean
from hdet.replicas.stacked.base import LossFn, Rows
from hdet.replicas.stacked.batches import divide, take_apart
from hdet.replicas.stacked.captured import CapturedPass
from hdet.replicas.stacked.loss import Loss, aliases_of
from hdet.replicas.stacked.optimizer import Place, StackedOptimizer, refuse_step, rule_of, stack_groups
from hdet.replicas.stacked.refusals import (
    explained,
    layout_of,
    refuse_changes,
    refuse_index,
    refuse_model,
    refuse_other_shapes,
    refuse_parameters,
)
from hdet.replicas.stacked.stand_ins import StandIn, StandIns

__all__ = ["StackedReplicas"]


class _Arrivals:
    """A hook of the matrices: whether a backward pass has added to their gradients since they were shared.

    It holds no replicas, which a matrix would then keep alive.
    """

    new = False

    def __call__(self, matrix: Tensor) -> None:
        self.new = True


class StackedReplicas(Rows):
    """N copies of a model that train side by side in one process.

    What is explored is explored as it is with processes: ``OneCycleAutoLR`` and ``Ensemble`` find the
    replicas by :attr:`optimizer`. A number that the forward pass reads (dropout's p, label smoothing, a
    temperature) is a tensor within the pass, one replica's own, which torch's dropout, cross entropy and
    attention take for it; code that asks what it is (``if self.p > 0``, ``float(self.p)``) is refused.
    Outside of the pass the module holds the base, and :meth:`write_` leaves numbers alone.

    Args:
        model: the bare module, on its device, its weights loaded: its own ``load_state_dict`` does nothing to
            the replicas afterwards. Modes and forward hooks that you set on it all replicas follow; hooks on
            gradients are refused, and so is a model whose parameters or buffers change. Its values stay as
            they are until :meth:`write_`.
        optimizer: torch's SGD, Adam or AdamW over the model's parameters: its groups, settings and state are
            taken over, and it refuses to step from then on.
        size: N ≥ 2.
        gradients: ``"all"`` replicas step by the mean of their gradients, as under DistributedDataParallel;
            with ``"none"`` each by its own.

    Every replica has dropout masks and BatchNorm statistics of its own. A parameter that a loss does not
    reach has a gradient of 0, not none: Adam's moments and weight decay go on. The gradients are not the
    model's: clip them by :meth:`clip_grad_norm_`, for torch's own does nothing here. A deep copy is a copy of
    model, rows and optimizer; schedulers and ensembles stay with the original, as they do with torch's.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> replicas = StackedReplicas(model, torch.optim.Adam(model.parameters(), lr=0.1), 4)
        >>> def loss_fn(model, batch):
        ...     return model(batch).square().mean()
        >>> for batch in torch.randn(5, 32, 3):          # 8 rows of 32 for each replica
        ...     losses = replicas.losses(loss_fn, batch)
        ...     replicas.backward(losses)
        ...     replicas.optimizer.step()
        ...     replicas.optimizer.zero_grad()
        >>> losses.shape
        torch.Size([4])
        >>> replicas.write_()                             # the mean of the replicas, into the model
    """

    rank = 0

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        size: int,
        *,
        gradients: Literal["all", "none"] = "all",
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2:
            raise ValueError(f"StackedReplicas: size (N) must be an integer of at least 2, got {size!r}")
        if gradients not in ("all", "none"):
            raise ValueError(
                f"StackedReplicas: gradients must be 'all' or 'none', got {gradients!r}; for arms use one "
                "process per replica"
            )
        refuse_model(model)
        self.size = self.local_count = size
        self.gradients = gradients
        self._model = model
        self._layout = layout_of(model)
        self._aliases = aliases_of(model)
        self._arrivals = _Arrivals()
        #: By name, a row for each replica.
        self._buffers = {
            name: torch.stack([buffer.detach()] * size) for name, buffer in model.named_buffers()
        }
        rule = rule_of(optimizer)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        refuse_parameters([p for g in optimizer.param_groups for p in g["params"] if p.requires_grad], names)
        self._places, groups, states = stack_groups(optimizer, names, size)
        #: Steps all replicas; give this one to a scheduler.
        self.optimizer = StackedOptimizer(groups, optimizer.defaults, rule, self)
        self.optimizer.state.update(states)
        self._stand_ins = StandIns(size, self.matrices)
        self._watch()
        optimizer.register_step_pre_hook(refuse_step)

    # ------------------------------------------------------------------ training

    def losses(self, loss_fn: LossFn, batch: Any) -> Tensor:
        """The loss of every replica on its own part of a batch, one tensor of N with its graph.

        Args:
            loss_fn: from (model, batch) to a scalar. It runs once for all replicas, so it must neither read
                values (``.item()``, ``if tensor``) nor write to tensors from outside.
            batch: a tensor, or tuples, lists and mappings of them. Each is divided along its first dimension:
                replica r has the r-th of N equal parts. Numbers and strings go to all replicas.
        """
        call = "StackedReplicas.losses"
        refuse_changes(call, self._layout, self._model)
        self.keep_up_()
        tensors, rebuild, _ = take_apart(batch)
        compute = Loss(self._model, loss_fn)

        def one(rows: dict[str, Tensor], numbers: Sequence[Tensor], part: Sequence[Tensor]) -> Tensor:
            values = {f"model.{alias}": rows[name] for alias, name in self._aliases.items() if name in rows}
            with self._stand_ins.standing(numbers):
                # torch would tie by itself, but swaps a module twice that has two names, and restores rows.
                loss: Tensor = functional_call(compute, values, (rebuild(part),), tie_weights=False)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
                raise ValueError(
                    f"{call}: loss_fn must return a tensor of one element, got {got}; reduce it first, e.g. "
                    "loss.mean()"
                )
            return loss.reshape(())

        every = vmap(one, randomness="different")
        # Fused attention has no rule for torch.vmap on a CPU, which would run it N times; on a GPU its
        # gradient fails there ("LSE is not correctly aligned", torch 2.11).
        with explained(call, self._model), sdpa_kernel(SDPBackend.MATH):
            rows = self._parameters() | self._buffers
            result: Tensor = every(rows, self._stand_ins.rows, divide(tensors, self.size))
        return result

    def backward(self, losses: Tensor) -> None:
        """The gradient of each replica's own loss; with ``gradients="all"`` the mean of them, for all.

        A backward pass of your own does the same: of the sum of the losses, not the mean, as in
        ``scaler.scale(losses.sum()).backward()``. A step that a ``GradScaler`` skips, all replicas skip, also
        on gradients of their own.
        """
        if losses.shape != (self.size,):
            raise ValueError(
                f"StackedReplicas.backward: losses must be the {self.size} of losses(), not reduced, got a "
                f"tensor of shape {tuple(losses.shape)}"
            )
        with explained("StackedReplicas.backward", self._model):
            losses.sum().backward()  # type: ignore[no-untyped-call]
        self.share_gradients_()

    def capture(self, loss_fn: LossFn) -> CapturedPass:
        """:meth:`losses` and :meth:`backward` in one call, which a GPU replays from a recording.

        Where a model is small, the host is what takes time, and this is several times as fast.

        Example::

            compute = replicas.capture(loss_fn)
            for batch in loader:
                losses = compute(batch)
                replicas.optimizer.step()
                replicas.optimizer.zero_grad()
        """
        return CapturedPass(self, loss_fn)

    @torch.no_grad()
    def share_(self, gradient: Tensor) -> Tensor:
        """What every replica steps by, in place: the mean of their gradients, or its own."""
        if self.gradients == "all":
            gradient.copy_(gradient.mean(0, keepdim=True).expand_as(gradient))
        return gradient

    def share_gradients_(self) -> None:
        """Share what backward passes have added since the last call; ``optimizer.step`` begins with it."""
        if self._arrivals.new:
            for gradient in self._gradients():
                self.share_(gradient)
            self._arrivals.new = False

    def gradients_of(self, losses: Tensor) -> list[Tensor]:
        """What :meth:`backward` would add to the gradient of each matrix, shared."""
        with explained("StackedReplicas.backward", self._model):
            # A group that the loss does not reach has a gradient of 0, as a parameter within a group has.
            gradients = torch.autograd.grad(losses.sum(), self.matrices, materialize_grads=True)
        return [self.share_(gradient) for gradient in gradients]

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float | Tensor) -> Tensor:
        """Clip the norm of every replica's gradient, as ``torch.nn.utils`` does for one; the norms before.

        ``max_norm`` is one for all, or a tensor of each one's.
        """
        self.share_gradients_()
        gradients = list(self._gradients())
        if not gradients:
            return torch.zeros(self.size)
        norms = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in gradients]).norm(dim=0)
        limits = max_norm.to(norms, non_blocking=True) if isinstance(max_norm, Tensor) else max_norm
        factors = (limits / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.to(gradient)[:, None])
        return cast("Tensor", norms)

    @torch.no_grad()
    def write_(self, replica: int | None = None) -> None:
        """Write a replica, or the mean of all, into the model that they are replicas of."""
        if replica is not None:
            refuse_index("StackedReplicas.write_", replica, self.size)
        refuse_other_shapes("StackedReplicas.write_", self._layout, self._model)
        rows_of = {place.name: place.rows(self.size) for place in self._places} | self._buffers
        for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
            if (rows := rows_of.get(name)) is None:  # not trained
                continue
            if replica is not None:
                tensor.copy_(rows[replica])
            else:
                averages = rows.is_floating_point() or rows.is_complex()
                tensor.copy_(rows.mean(0) if averages else rows.amax(0))

    def deliver_(self) -> None:
        self.write_()

    def slices(self, replica: int) -> list[Tensor]:
        """The trained parameters of one replica, in the model's order; writing to them writes to it."""
        refuse_index("StackedReplicas.slices", replica, self.size)
        return [place.rows(self.size)[replica] for place in self._places]

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, a row for each replica. The optimizer has a state of its own."""
        parameters = {place.name: place.rows(self.size).clone() for place in self._places}
        return parameters | {name: rows.clone() for name, rows in self._buffers.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up where :meth:`state_dict` left off."""
        held = {place.name: place.rows(self.size) for place in self._places} | self._buffers
        shapes = {name: tuple(rows.shape) for name, rows in held.items()}
        given = {
            name: tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
            for name, value in state.items()
        }
        odd = [name for name in {**shapes, **given} if shapes.get(name) != given.get(name)]
        if odd:
            raise ValueError(
                f"StackedReplicas.load_state_dict: the state must be of {self.size} replicas of this model, "
                f"and differs in {', '.join(odd[:3])}: got {given.get(odd[0], 'none')} for "
                f"{shapes.get(odd[0], 'none')}; give what state_dict() of as many replicas returned"
            )
        for name, rows in held.items():
            rows.copy_(state[name])

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The trained parameters of all replicas, a matrix or more for each group."""
        return [matrix for group in self.optimizer.param_groups for matrix in group["params"]]

    @property
    def modes(self) -> tuple[int, ...]:
        """The training flags of all modules, and how many numbers the replicas may differ in."""
        return (*(module.training for module in self._model.modules()), len(self._stand_ins))

    # ------------------------------------------------------------------ what the engine asks

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        columns = [
            value.tolist() if isinstance(value, Tensor) and value.dim() else [float(value)] * self.size
            for value in row
        ]
        return [list(values) for values in zip(*columns, strict=True)] if columns else [[]] * self.size

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        return None

    def buffers_of(self, model: nn.Module | None) -> list[Tensor]:
        return list(self._buffers.values())

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        floating = [t for t in buffers if t.is_floating_point() or t.is_complex()]
        integer = [t for t in buffers if not (t.is_floating_point() or t.is_complex())]
        rows = distinct_tensors([t.detach() for t in tensors])

        @torch.no_grad()
        def converge() -> tuple[str, ...]:
            for tensor in rows:
                _average(tensor, torch.float32)
            for tensor in floating:
                # Often constants (a mask's least float, a table of angles): equal ones stay as they are.
                _average(tensor, torch.float32 if tensor.device.type == "mps" else torch.float64)
            differing = 0
            for tensor in integer:
                largest = tensor.amax(0, keepdim=True)
                differing += int((tensor != largest).any(0).sum())
                tensor.copy_(largest.expand_as(tensor))
            return (
                (f"{differing} integer buffer values differed: the maximum was taken",) if differing else ()
            )

        return converge

    def rows_of(self, tensor: Tensor) -> list[Tensor]:
        return list(tensor.unbind(0))

    def stand_in(self, owner: Any, attribute: str) -> StandIn:
        # A buffer has rows of its own, which the pass reads anyway.
        held = getattr(owner, attribute)
        buffers = dict(self._model.named_buffers())
        name = next((name for name, buffer in buffers.items() if buffer is held), None)
        return self._stand_ins.of(owner, attribute, None if name is None else self._buffers[name])

    def keep_up_(self) -> None:
        self._stand_ins.keep_up_()

    # ------------------------------------------------------------------ how they are stacked

    def _parameters(self) -> dict[str, Tensor]:
        """The stacked parameters by name, as views that pass gradients to the matrices."""
        pieces: dict[str, Tensor] = {}
        by_matrix: dict[int, list[Place]] = {}
        for place in self._places:
            by_matrix.setdefault(id(place.matrix), []).append(place)
        for places in by_matrix.values():
            places.sort(key=lambda place: place.columns.start)
            # One split: its gradient is one concatenation, where a slice's would be a matrix of zeros each.
            widths = [math.prod(place.shape) for place in places]
            for place, piece in zip(places, torch.split(places[0].matrix, widths, dim=1), strict=True):
                pieces[place.name] = piece.view(self.size, *place.shape)
        return pieces

    def _gradients(self) -> Iterator[Tensor]:
        return (matrix.grad for matrix in self.matrices if matrix.grad is not None)

    def _watch(self) -> None:
        for matrix in dict.fromkeys(place.matrix for place in self._places):
            matrix.register_post_accumulate_grad_hook(self._arrivals)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        # Whoever moves what replicas differ in stays with the original.
        return {**self.__dict__, "_stand_ins": StandIns(self.size, self.matrices)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy: torch copies parameters without their hooks."""
        self.__dict__.update(state)
        self._watch()


def _average(rows: Tensor, accumulate: torch.dtype) -> None:
    wide = rows.to(torch.promote_types(rows.dtype, accumulate))
    rows.copy_(wide.mean(0, keepdim=True).expand_as(rows))
