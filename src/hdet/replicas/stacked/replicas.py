"""N replicas in one process on one device: each parameter group is one matrix, with a row for each replica.

A training step is one forward and one backward pass of all replicas at once (``torch.vmap``), which on a
device that one small model leaves idle costs little more than one replica's. Nothing is communicated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase  # no public name covers all kinds
from torch.optim import Optimizer

from hdet.replicas.averaging import always, differing_values, distinct_tensors, floating_and_integer
from hdet.replicas.base import Mean, Replicas
from hdet.replicas.norms import row_norms
from hdet.replicas.stacked.batches import divide, flatten
from hdet.replicas.stacked.checks import (
    check_index,
    check_model,
    check_parameters,
    check_unchanged,
    explained,
    layout_of,
)
from hdet.replicas.stacked.cuda_graph import CapturedPass
from hdet.replicas.stacked.optimizer import (
    StackedOptimizer,
    StackedParameter,
    refuse_step,
    rule_of,
    stack_groups,
)
from hdet.replicas.stacked.replaced import Attributes, LossFn, ModelWithLoss, ReplicaValues, aliases_of

__all__ = ["StackedReplicas"]


class StackedReplicas(Replicas):
    """N copies of a model that train side by side in one process.

    What is explored is explored as it is with processes: ``OneCycleAutoLR`` and ``Ensemble`` find the
    replicas by :attr:`optimizer`. A number that the forward pass reads (dropout's p, label smoothing, a
    temperature) is a tensor within the pass, one replica's own, which torch's dropout, cross entropy and
    attention accept; code that reads its value (``if self.p > 0``, ``float(self.p)``) raises. Outside of the
    pass the module holds the base, and :meth:`write_` leaves numbers alone.

    Args:
        model: the bare module, on its device, its weights loaded: its own ``load_state_dict`` does nothing to
            the replicas afterwards. Modes and forward hooks that you set on it hold for all replicas; hooks
            on gradients raise, and so does a model whose parameters or buffers change. :meth:`write_` alone
            writes to it.
        optimizer: torch's SGD, Adam or AdamW over the model's parameters: its groups, settings and state are
            taken over, and its own ``step`` raises from then on.
        size: N ≥ 2.
        gradients: ``"all"`` replicas step by the mean of their gradients, as under DistributedDataParallel;
            with ``"none"`` each by its own; a number is that of arms, consecutive replicas of which share
            theirs and have all values in common: 4 of 8 replicas are four pairs.

    Every replica has dropout masks and BatchNorm statistics of its own. A parameter that a loss does not
    reach has a gradient of 0, not none: Adam's moments and weight decay continue. The gradients are not the
    model's: clip them by :meth:`clip_grad_norm_`, since torch's own does nothing to them. A deep copy is a
    copy of model, rows and optimizer; schedulers and ensembles stay with the original, as with torch's.

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
        gradients: Literal["all", "none"] | int = "all",
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2:
            raise ValueError(f"StackedReplicas: size (N) must be an integer of at least 2, got {size!r}")
        arms = 1 if gradients == "all" else size if gradients == "none" else gradients
        if isinstance(arms, bool) or not isinstance(arms, int) or arms < 1 or size % arms:
            raise ValueError(
                "StackedReplicas: gradients must be 'all', 'none' or a number of arms that divides the "
                f"{size} replicas, got {gradients!r}"
            )
        check_model(model)
        self.size = self.local_count = size
        self.gradients = gradients
        self._model = model
        self._layout = layout_of(model)
        self._aliases = aliases_of(model)
        #: By name, a row for each replica.
        self._buffers = {
            name: torch.stack([buffer.detach()] * size) for name, buffer in model.named_buffers()
        }
        rule = rule_of(optimizer)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        check_parameters([p for g in optimizer.param_groups for p in g["params"] if p.requires_grad], names)
        self._parameters, groups, states = stack_groups(optimizer, names, size)
        #: Steps all replicas; give this one to a scheduler.
        self.optimizer = StackedOptimizer(groups, optimizer.defaults, rule, self, arms=arms)
        self.optimizer.state.update(states)
        self._attributes = Attributes(size, self.optimizer.matrices)
        optimizer.register_step_pre_hook(refuse_step)

    # ------------------------------------------------------------------ training

    def losses(self, loss_fn: LossFn, batch: Any) -> Tensor:
        """The loss of every replica on its own part of a batch, one tensor of N with its graph.

        Args:
            loss_fn: from (model, batch) to a scalar. It runs once for all replicas, so it must neither read
                values (``.item()``, ``if tensor``) nor write to tensors from outside.
            batch: a tensor, or tuples, lists and mappings of them. Each is divided along its first dimension:
                replica r gets the r-th of N equal parts. All replicas get the same numbers and strings.
        """
        call = "StackedReplicas.losses"
        check_unchanged(call, self._layout, self._model)
        self._attributes.refresh_()
        tensors, rebuild, _ = flatten(batch)
        compute = ModelWithLoss(self._model, loss_fn)

        def one(rows: dict[str, Tensor], numbers: Sequence[Tensor], part: Sequence[Tensor]) -> Tensor:
            values = {f"model.{alias}": rows[name] for alias, name in self._aliases.items() if name in rows}
            with self._attributes.replaced(numbers):
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
            rows = self._slices_with_graph() | self._buffers
            result: Tensor = every(rows, self._attributes.rows, divide(tensors, self.size))
        return result

    def backward(self, losses: Tensor) -> None:
        """The gradient of each replica's own loss; of replicas that share them, their mean.

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
        self.optimizer.share_gradients_()

    def capture(self, loss_fn: LossFn) -> Callable[[Any], Tensor]:
        """:meth:`losses` and :meth:`backward` in one call, which a GPU replays from a recording; on a CPU
        nothing is recorded. Under ``torch.no_grad`` it is :meth:`losses` alone, so a probe can take it, too.

        Where a model is small, the host takes most of the time, and this is several times as fast. A replay
        reads what replicas explore; other numbers that ``loss_fn`` reads stay as recorded, and whether the
        model is still as it was stacked is checked only when a pass is recorded.

        Example::

            compute = replicas.capture(loss_fn)
            probe = hdet.Probe(compute, held_out, model=model)
            for batch in loader:
                losses = compute(batch)
                replicas.optimizer.step()
                replicas.optimizer.zero_grad()
        """

        def plain(batch: Any) -> Tensor:
            losses = self.losses(loss_fn, batch)
            if torch.is_grad_enabled():
                self.backward(losses)
            return losses.detach()

        def run(batch: Any) -> tuple[Tensor, list[Tensor]]:
            losses = self.losses(loss_fn, batch)
            if not torch.is_grad_enabled():
                return losses, []
            with explained("StackedReplicas.backward", self._model):
                # A group that the loss does not reach has a gradient of 0, as a parameter within a group has.
                gradients = torch.autograd.grad(losses.sum(), matrices, materialize_grads=True)
            return losses.detach(), [self.optimizer.share_(gradient) for gradient in gradients]

        def prepare() -> Hashable:
            self._attributes.refresh_()
            return self.modes

        matrices = self.optimizer.matrices
        if not matrices[0].is_cuda:
            return plain
        return CapturedPass(run, prepare, matrices, [*self._buffers.values()])

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float | Tensor) -> Tensor:
        """Clip the norm of every replica's gradient, as ``torch.nn.utils`` does for one; the norms before.

        ``max_norm`` is one for all, or a tensor of each one's.
        """
        self.optimizer.share_gradients_()
        gradients = [matrix.grad for matrix in self.optimizer.matrices if matrix.grad is not None]
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
            check_index("StackedReplicas.write_", replica, self.size)
        check_unchanged("StackedReplicas.write_", self._layout, self._model, shapes_only=True)
        stacked = self._rows()
        for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
            if (rows := stacked.get(name)) is None:  # not trained
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
        check_index("StackedReplicas.slices", replica, self.size)
        return [parameter.rows[replica] for parameter in self._parameters]

    def _rows(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, a row for each replica; writing to them writes to the replicas."""
        return {parameter.name: parameter.rows for parameter in self._parameters} | self._buffers

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, a row for each replica. The optimizer has a state of its own."""
        return {name: rows.clone() for name, rows in self._rows().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what :meth:`state_dict` of as many replicas returned."""
        held = self._rows()
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
    def modes(self) -> tuple[float | None, ...]:
        """The training flags and momenta of all modules, and how many numbers the replicas may differ in."""
        modules = list(self._model.modules())
        # A refresh of running statistics writes the momentum of norms.
        momenta = (module.momentum for module in modules if isinstance(module, _NormBase))
        return (*(module.training for module in modules), *momenta, len(self._attributes))

    # ------------------------------------------------------------------ the protocol of Replicas

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        columns = [
            value.tolist() if isinstance(value, Tensor) and value.dim() else [float(value)] * self.size
            for value in row
        ]
        return [list(values) for values in zip(*columns, strict=True)] if columns else [[]] * self.size

    def buffers_of(self, model: nn.Module | None) -> dict[str, Tensor]:
        name = next((name for name, module in self._model.named_modules() if module is model), "")
        start = f"{name}." if name else ""
        return {key.removeprefix(start): b for key, b in self._buffers.items() if key.startswith(start)}

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        floating, integer = floating_and_integer(buffers)
        rows = distinct_tensors([t.detach() for t in tensors])

        @torch.no_grad()
        def converge(sound: Callable[[], bool] = always) -> tuple[str, ...]:
            if not sound():
                return ()
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
            return differing_values(differing)

        return converge

    def parts_of(self, parameter: Tensor) -> list[Tensor]:
        return [one.rows[0] for one in self._parameters if one.matrix is parameter]

    def rows_of(self, tensor: Tensor) -> list[Tensor]:
        return list(tensor.unbind(0))

    def norm_of(self, tensors: Sequence[Tensor]) -> float | Tensor:
        return row_norms(tensors, self.size)

    def values_of(self, owner: Any, attribute: str) -> ReplicaValues:
        """The replicas' values of a number that the forward pass reads as an attribute."""
        held = getattr(owner, attribute)
        name = next((name for name, buffer in self._model.named_buffers() if buffer is held), None)
        return self._attributes.of(owner, attribute, None if name is None else self._buffers[name])

    # ------------------------------------------------------------------ how they are stacked

    def _slices_with_graph(self) -> dict[str, Tensor]:
        """The stacked parameters by name, as views that pass gradients to the matrices."""
        pieces: dict[str, Tensor] = {}
        by_matrix: dict[int, list[StackedParameter]] = {}
        for parameter in self._parameters:
            by_matrix.setdefault(id(parameter.matrix), []).append(parameter)
        for same in by_matrix.values():
            same.sort(key=lambda parameter: parameter.columns.start)
            # One split: its gradient is one concatenation, where a slice's would be a matrix of zeros each.
            split = torch.split(same[0].matrix, [math.prod(parameter.shape) for parameter in same], dim=1)
            for parameter, piece in zip(same, split, strict=True):
                pieces[parameter.name] = piece.view(self.size, *parameter.shape)
        return pieces

    def __getstate__(self) -> dict[str, Any]:
        # In a copy nobody explores: what moves the replicas' values stays with the original.
        return {**self.__dict__, "_attributes": Attributes(self.size, self.optimizer.matrices)}


def _average(rows: Tensor, accumulate: torch.dtype) -> None:
    wide = rows.to(torch.promote_types(rows.dtype, accumulate))
    rows.copy_(wide.mean(0, keepdim=True).expand_as(rows))
