"""N replicas in one process on one device: each parameter group is one matrix, with a row for each replica.

A training step is one forward and one backward pass of all replicas at once (``torch.vmap``), which on a
device that one small model leaves idle costs little more than one replica's. Nothing is communicated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from hdet.replicas.averaging import distinct_tensors
from hdet.replicas.base import Mean, Replicas
from hdet.replicas.captured import CapturedPass
from hdet.replicas.stacked_optimizer import StackedOptimizer, rule_of
from hdet.replicas.stacked_refusals import refuse_model, refuse_parameters, why_not

__all__ = ["StackedReplicas"]

LossFn = Callable[[nn.Module, Any], Tensor]


class _Place(NamedTuple):
    """Where a parameter of the model lies: in these columns of a matrix."""

    name: str
    matrix: nn.Parameter
    columns: slice
    shape: torch.Size

    def rows(self, size: int) -> Tensor:
        """The parameter of all replicas, without a graph."""
        return self.matrix.detach()[:, self.columns].view(size, *self.shape)


class StackedReplicas(Replicas):
    """N copies of a model that train side by side in one process.

    What explores the optimizer's values (learning rate, weight decay, momentum, betas) works as it does with
    processes: ``OneCycleAutoLR`` and ``Ensemble`` find the replicas by :attr:`optimizer`. What acts in the
    forward pass as a Python number (dropout's p, a temperature) cannot differ between slices of one pass.

    Args:
        model: the bare module, on its device. It stays as it is, apart from modes and hooks that you set on
            it, which all replicas follow, until :meth:`write_`.
        optimizer: torch's SGD, Adam or AdamW over the model's parameters: its groups, settings and state are
            taken over, and it is not stepped any more.
        size: N ≥ 2.
        gradients: ``"all"`` replicas step by the mean of their gradients, as under DistributedDataParallel;
            with ``"none"`` each by its own.

    Every replica has dropout masks and BatchNorm statistics of its own. A parameter that a loss does not
    reach has a gradient of 0, not none: Adam's moments and weight decay go on.

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
        self.size = self.here = size
        self.gradients = gradients
        self._model = model
        self._places: list[_Place] = []
        #: By name, a row for each replica.
        self._buffers = {
            name: torch.stack([buffer.detach()] * size) for name, buffer in model.named_buffers()
        }
        rule = rule_of(optimizer)
        groups, states = self._stack(optimizer)
        #: Steps all replicas; give this one to a scheduler.
        self.optimizer = StackedOptimizer(groups, optimizer.defaults, rule, self)
        for matrix, state in states.items():
            self.optimizer.state[matrix] = state

    # ------------------------------------------------------------------ training

    def losses(self, loss_fn: LossFn, batch: Any) -> Tensor:
        """The loss of every replica on its own part of a batch, one tensor of N with its graph.

        Args:
            loss_fn: from (model, batch) to a scalar. It runs once for all replicas, so it must neither read
                values (``.item()``, ``if tensor``) nor write to tensors from outside.
            batch: a tensor, or tuples, lists and dicts of them. Each is divided along its first dimension:
                replica r has the r-th of N equal parts. What is no tensor goes to all replicas.
        """
        parts, dimensions = _divided(batch, self.size)
        compute = _Loss(self._model, loss_fn)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], part: Any) -> Tensor:
            loss: Tensor = functional_call(compute, {**parameters, **buffers}, (part,))
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
                raise ValueError(
                    f"StackedReplicas.losses: loss_fn must return a tensor of one element, got {got}; reduce "
                    "it first, e.g. loss.mean()"
                )
            return loss.reshape(())

        buffers = {f"model.{name}": stacked for name, stacked in self._buffers.items()}
        every = vmap(one, in_dims=(0, 0 if buffers else None, dimensions), randomness="different")
        try:
            # Fused attention has no rule for torch.vmap on a CPU, which would run it N times; on a GPU its
            # gradient fails there ("LSE is not correctly aligned", torch 2.11).
            with sdpa_kernel(SDPBackend.MATH):
                result: Tensor = every(self._parameters(), buffers, parts)
        except (RuntimeError, NotImplementedError) as error:
            if reason := why_not(str(error)):
                raise TypeError(
                    f"StackedReplicas.losses: {type(self._model).__name__} and loss_fn cannot run as slices "
                    f"of one pass: {reason} ({str(error).splitlines()[0][:300]}); change that, or use one "
                    "process per replica"
                ) from error
            raise
        return result

    def backward(self, losses: Tensor) -> None:
        """The gradient of each replica's own loss; with ``gradients="all"`` the mean of them, for all."""
        if losses.shape != (self.size,):
            raise ValueError(
                f"StackedReplicas.backward: losses must be the {self.size} of losses(), not reduced, got a "
                f"tensor of shape {tuple(losses.shape)}"
            )
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for gradient in self._gradients():
            self.share_(gradient)

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

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the norm of every replica's gradient, as ``torch.nn.utils`` does for one; the norms before."""
        gradients = list(self._gradients())
        if not gradients:
            return torch.zeros(self.size)
        norms = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in gradients]).norm(dim=0)
        factors = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.to(gradient)[:, None])
        return cast("Tensor", norms)

    @torch.no_grad()
    def write_(self, replica: int | None = None) -> None:
        """Write a replica, or the mean of all, into the model that they are replicas of."""
        own = dict(self._model.named_parameters())
        stacked: list[tuple[Tensor, Tensor]] = []
        stacked += [(own[place.name], place.rows(self.size)) for place in self._places]
        stacked += [(buffer, self._buffers[name]) for name, buffer in self._model.named_buffers()]
        for tensor, rows in stacked:
            if replica is not None:
                tensor.copy_(rows[replica])
            else:
                averages = rows.is_floating_point() or rows.is_complex()
                tensor.copy_(rows.mean(0) if averages else rows.amax(0))

    def slices(self, replica: int) -> list[Tensor]:
        """The trained parameters of one replica, in the model's order; writing to them writes to it."""
        return [place.rows(self.size)[replica] for place in self._places]

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, a row for each replica. The optimizer has a state of its own."""
        parameters = {place.name: place.rows(self.size).clone() for place in self._places}
        return parameters | {name: rows.clone() for name, rows in self._buffers.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up where :meth:`state_dict` left off."""
        held = {place.name: place.rows(self.size) for place in self._places} | self._buffers
        shapes, given = ({name: t.shape for name, t in some.items()} for some in (held, state))
        odd = [name for name in {**shapes, **given} if shapes.get(name) != given.get(name)]
        if odd:
            raise ValueError(
                f"StackedReplicas.load_state_dict: the state must be of {self.size} replicas of this model, "
                f"and differs in {', '.join(odd[:3])}"
            )
        for name, rows in held.items():
            rows.copy_(state[name])

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The trained parameters of all replicas, a matrix or more for each group."""
        return [matrix for group in self.optimizer.param_groups for matrix in group["params"]]

    @property
    def modes(self) -> tuple[bool, ...]:
        """The training flags of all modules."""
        return tuple(module.training for module in self._model.modules())

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

    # ------------------------------------------------------------------ how they are stacked

    def _stack(self, optimizer: Optimizer) -> tuple[list[dict[str, Any]], dict[Tensor, dict[str, Any]]]:
        """The optimizer's groups and state with matrices for parameters, one for each type of number."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        refuse_parameters(held, names)
        groups: list[dict[str, Any]] = []
        states: dict[Tensor, dict[str, Any]] = {}
        for group in optimizer.param_groups:
            trained = [p for p in group["params"] if p.requires_grad]
            matrices = []
            for dtype in dict.fromkeys(p.dtype for p in trained):
                same = [p for p in trained if p.dtype == dtype]
                flat = torch.cat([p.detach().reshape(-1) for p in same])
                matrix = nn.Parameter(flat.repeat(self.size, 1))
                matrices.append(matrix)
                if state := self._stacked_state(optimizer, same):
                    states[matrix] = state
                ends = torch.tensor([p.numel() for p in same]).cumsum(0).tolist()
                for p, end in zip(same, ends, strict=True):
                    columns = slice(end - p.numel(), end)
                    self._places.append(_Place(names[id(p)], matrix, columns, p.shape))
            decoupled = type(optimizer) is torch.optim.AdamW
            settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            groups.append({"decoupled_weight_decay": decoupled, **settings, "params": matrices})
        order = {name: k for k, name in enumerate(names.values())}
        self._places.sort(key=lambda place: order[place.name])
        return groups, states

    def _stacked_state(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> dict[str, Any]:
        """What the optimizer remembers of some parameters, for every replica alike."""
        kept = [optimizer.state.get(p, {}) for p in parameters]
        if not any(kept):
            return {}
        if (
            any(state.keys() != kept[0].keys() for state in kept)
            or len({_steps(state) for state in kept}) > 1
        ):
            raise ValueError(
                "StackedReplicas: optimizer must remember the same of every parameter of a group, and has "
                "stepped some of them more often than others; stack replicas of a fresh optimizer"
            )
        tensors = [key for key, value in kept[0].items() if key != "step" and isinstance(value, Tensor)]
        stacked = {
            key: torch.cat([state[key].reshape(-1) for state in kept]).repeat(self.size, 1) for key in tensors
        }
        return {"step": _steps(kept[0]), **stacked} if "step" in kept[0] else stacked

    def _parameters(self) -> dict[str, Tensor]:
        """The stacked parameters by name, as views that pass gradients to the matrices."""
        pieces: dict[str, Tensor] = {}
        by_matrix: dict[int, list[_Place]] = {}
        for place in self._places:
            by_matrix.setdefault(id(place.matrix), []).append(place)
        for places in by_matrix.values():
            places.sort(key=lambda place: place.columns.start)
            # One split: its gradient is one concatenation, where a slice's would be a matrix of zeros each.
            widths = [math.prod(place.shape) for place in places]
            for place, piece in zip(places, torch.split(places[0].matrix, widths, dim=1), strict=True):
                pieces[f"model.{place.name}"] = piece.view(self.size, *place.shape)
        return pieces

    def _gradients(self) -> Iterator[Tensor]:
        return (matrix.grad for matrix in self.matrices if matrix.grad is not None)


class _Loss(nn.Module):
    """Makes of a model and a loss one module, whose parameters can be stood in for."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        held = dict(self.model.named_buffers())
        loss = self.loss_fn(self.model, batch)
        for name, buffer in self.model.named_buffers():
            if buffer is not held.get(name):
                raise TypeError(
                    f"StackedReplicas.losses: the forward pass must write buffers in place, got a new tensor "
                    f"in {name}, which would be lost; write self.{name.split('.')[-1]}.copy_(...)"
                )
        return loss


def _average(rows: Tensor, accumulate: torch.dtype) -> None:
    wide = rows.to(torch.promote_types(rows.dtype, accumulate))
    rows.copy_(wide.mean(0, keepdim=True).expand_as(rows))


def _divided(batch: Any, size: int) -> tuple[Any, Any]:
    """The batch with a first dimension for the replicas, and in the same form along what each is mapped."""
    if isinstance(batch, Tensor):
        if batch.dim() == 0 or len(batch) % size or not len(batch):
            raise ValueError(
                f"StackedReplicas.losses: the first dimension of every tensor of batch must be a multiple of "
                f"the {size} replicas, got a shape of {tuple(batch.shape)}"
            )
        return batch.view(size, len(batch) // size, *batch.shape[1:]), 0
    if isinstance(batch, Mapping):
        both = {key: _divided(value, size) for key, value in batch.items()}
        return {key: part for key, (part, _) in both.items()}, {key: at for key, (_, at) in both.items()}
    if isinstance(batch, (tuple, list)):
        pairs = [_divided(value, size) for value in batch]
        parts, places = [part for part, _ in pairs], [at for _, at in pairs]
        if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*parts), type(batch)(*places)
        kind = list if isinstance(batch, list) else tuple
        return kind(parts), kind(places)
    if is_dataclass(batch):
        raise TypeError(
            "StackedReplicas.losses: batch must be tensors in tuples, lists or dicts, so that each replica "
            f"gets its part, got a {type(batch).__name__}; pass a dict of its tensors"
        )
    return batch, None


def _steps(state: Mapping[str, Any]) -> int:
    return int(state.get("step", 0))
