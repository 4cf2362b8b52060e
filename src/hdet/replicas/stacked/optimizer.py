"""SGD, Adam and AdamW for replicas that lie in one matrix, a row for each.

What a group holds (``lr``, ``betas``, ``weight_decay`` …) is a number for all rows or, while replicas are
fanned out, a tensor with one for each. The rules are torch's own, operation by operation, so that a row goes
where a replica in a process of its own would go, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hdet.replicas.base import Replicas

__all__ = ["StackedOptimizer", "StackedParameter", "refuse_step", "rule_of", "stack_groups"]

Group = dict[str, Any]
State = dict[str, Any]


class StackedParameter(NamedTuple):
    """A parameter of all replicas: these columns of a matrix."""

    name: str
    matrix: nn.Parameter
    columns: slice
    shape: torch.Size

    @property
    def rows(self) -> Tensor:
        """With a first dimension for the replicas, without a graph."""
        return self.matrix.detach()[:, self.columns].view(len(self.matrix), *self.shape)


class _Arrivals:
    """A hook of the matrices: whether a backward pass has added to their gradients since they were shared.

    It holds no replicas, which a matrix would then keep alive.
    """

    new = False

    def __call__(self, matrix: Tensor) -> None:
        self.new = True


class StackedOptimizer(Optimizer):
    """Steps every row of its matrices; :class:`~hdet.StackedReplicas` makes it.

    Args:
        groups: as torch has them; each parameter is a matrix.
        defaults: of the optimizer that it replaces.
        rule: what one matrix does in a step.
        replicas: whose rows these are.
        arms: consecutive rows of so many arms of equal size step by the mean of their arm's gradients.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        defaults: Group,
        rule: Callable[[Tensor, Tensor, State, Group], None],
        replicas: Replicas,
        *,
        arms: int,
    ) -> None:
        super().__init__(groups, defaults)
        self._rule = rule
        self._arms = arms
        self._arrivals = _Arrivals()
        #: Functions that are given the optimizer alone find the replicas by it.
        self.replicas = replicas
        self._watch()

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The trained parameters of all replicas, a matrix or more for each group."""
        return [matrix for group in self.param_groups for matrix in group["params"]]

    def _watch(self) -> None:
        for matrix in self.matrices:
            matrix.register_post_accumulate_grad_hook(self._arrivals)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all replicas, on gradients that are shared first where they are not yet."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.share_gradients_()
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    gradient = -matrix.grad if group["maximize"] else matrix.grad
                    self._rule(matrix, gradient, self.state[matrix], group)
        return loss

    def share_gradients_(self) -> None:
        """Share what backward passes have added since the last call."""
        if self._arrivals.new:
            for matrix in self.matrices:
                if matrix.grad is not None:
                    self.share_(matrix.grad)
            self._arrivals.new = False

    @torch.no_grad()
    def share_(self, gradient: Tensor) -> Tensor:
        """In place, what every replica steps by: the mean of its arm's gradients."""
        if self._arms < len(gradient):
            by_arm = gradient.view(self._arms, -1, gradient.shape[1])
            by_arm.copy_(by_arm.mean(1, keepdim=True).expand_as(by_arm))
        return gradient

    def add_param_group(self, param_group: Group) -> None:
        """Raise once the replicas are stacked: a new group would have no rows."""
        if hasattr(self, "replicas"):
            raise RuntimeError(
                "StackedOptimizer.add_param_group: the groups must be those that were stacked, got one more; "
                "call replicas.write_(), add it to a new optimizer of the model, and stack again"
            )
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what ``state_dict()`` of as many replicas of this model returned."""
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, matrix in zip(saved, self.matrices, strict=False):  # torch compares the groups
            for key, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor) and value.dim() and value.shape != matrix.shape:
                    raise ValueError(
                        f"StackedOptimizer.load_state_dict: the state must be of {len(matrix)} replicas of "
                        f"this model, {key} of shape {tuple(matrix.shape)}, got {tuple(value.shape)}; stack "
                        "as many replicas as were saved"
                    )
        super().load_state_dict(dict(state_dict))

    def __getstate__(self) -> dict[str, Any]:
        # torch's own keeps groups and state alone; a copy has to step as well.
        own = ("_rule", "_arms", "_arrivals", "replicas")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_arrivals" in state:  # a copy: torch copies parameters without their hooks
            self._watch()


def refuse_step(optimizer: Optimizer, args: Any, kwargs: Any) -> NoReturn:
    """A hook for the optimizer that was stacked: it would step the model, which is not trained any more."""
    raise RuntimeError(
        f"{type(optimizer).__name__}.step: the parameters of this optimizer were stacked, and it steps the "
        "model, not its replicas; step replicas.optimizer, and give that one to schedulers"
    )


def stack_groups(
    optimizer: Optimizer, names: Mapping[int, str], size: int
) -> tuple[list[StackedParameter], list[Group], dict[Tensor, State]]:
    """The optimizer's groups and state with matrices for parameters, one for each type of number.

    The stacked parameters have the order of ``names``, which are by the parameters' ``id``.
    """
    stacked: list[StackedParameter] = []
    groups: list[Group] = []
    states: dict[Tensor, State] = {}
    decoupled = type(optimizer) is AdamW
    for group in optimizer.param_groups:
        trained = [p for p in group["params"] if p.requires_grad]
        matrices = []
        for dtype in dict.fromkeys(p.dtype for p in trained):
            same = [p for p in trained if p.dtype == dtype]
            matrix = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in same]).repeat(size, 1))
            matrices.append(matrix)
            if state := _stacked_state(optimizer, same, size):
                states[matrix] = state
            for p, end in zip(same, accumulate(p.numel() for p in same), strict=True):
                columns = slice(end - p.numel(), end)
                stacked.append(StackedParameter(names[id(p)], matrix, columns, p.shape))
        settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        groups.append({"decoupled_weight_decay": decoupled, **settings, "params": matrices})
    order = {name: k for k, name in enumerate(names.values())}
    return sorted(stacked, key=lambda one: order[one.name]), groups, states


def _stacked_state(optimizer: Optimizer, parameters: Sequence[Tensor], size: int) -> State:
    """The optimizer's state of some parameters, repeated for every replica."""
    kept = [optimizer.state.get(p, {}) for p in parameters]
    if not any(kept):
        return {}
    steps = {int(state.get("step", 0)) for state in kept}
    if any(state.keys() != kept[0].keys() for state in kept) or len(steps) > 1:
        raise ValueError(
            "StackedReplicas: optimizer must have the same kind of state for all parameters of a group, and "
            "has stepped some of them more often than others; stack replicas of a fresh optimizer"
        )
    tensors = [key for key, value in kept[0].items() if key != "step" and isinstance(value, Tensor)]
    stacked: State = {
        key: torch.cat([state[key].reshape(-1) for state in kept]).repeat(size, 1) for key in tensors
    }
    return {"step": steps.pop(), **stacked} if "step" in kept[0] else stacked


def rule_of(optimizer: Optimizer) -> Callable[[Tensor, Tensor, State, Group], None]:
    """The rule of a torch optimizer; TypeError if there is none for rows."""
    known = {SGD: _sgd_, Adam: _adam_, AdamW: _adam_}
    rule = known.get(type(optimizer))
    if rule is None:
        raise TypeError(
            f"StackedReplicas: optimizer must be torch's SGD, Adam or AdamW, got {type(optimizer).__name__}: "
            "its rule has to be known to act on each row alone; use one of these, or one process per replica"
        )
    for group in optimizer.param_groups:
        unknown = [name for name in ("amsgrad", "differentiable") if group.get(name)]
        if unknown:
            raise TypeError(
                f"StackedReplicas: optimizer must not be {unknown[0]}, got {unknown[0]}=True: that is not "
                "written for rows; leave it out, or use one process per replica"
            )
        for name, value in group.items():
            held = value if isinstance(value, tuple) else (value,)
            if name != "params" and any(isinstance(item, Tensor) for item in held):
                raise TypeError(
                    f"StackedReplicas: {name} must be a number, got a tensor, which would mean one value per "
                    "replica; give a float"
                )
    return rule


def _sgd_(matrix: Tensor, gradient: Tensor, state: State, group: Group) -> None:
    lr, decay, momentum = (_column(group[key]) for key in ("lr", "weight_decay", "momentum"))
    if _acts(decay):
        gradient = _decayed(gradient, matrix, decay)
    if _acts(momentum):
        momentum = _as(momentum, matrix)
        buffer = state.get("momentum_buffer")
        if buffer is None:
            buffer = state["momentum_buffer"] = gradient.clone()
        else:
            buffer.mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
        gradient = gradient + momentum * buffer if group["nesterov"] else buffer
    _descend(matrix, gradient, _as(lr, matrix))


def _adam_(matrix: Tensor, gradient: Tensor, state: State, group: Group) -> None:
    if not state:
        state["step"] = 0
        state["exp_avg"] = torch.zeros_like(matrix)
        state["exp_avg_sq"] = torch.zeros_like(matrix)
    state["step"] += 1
    lr, decay, eps = (_column(group[key]) for key in ("lr", "weight_decay", "eps"))
    if _acts(decay):
        if group["decoupled_weight_decay"]:
            matrix.mul_(_as(1 - lr * decay, matrix))
        else:
            gradient = _decayed(gradient, matrix, decay)
    beta1, beta2 = map(_column, group["betas"])
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    _approach(mean, gradient, _as(1 - beta1, matrix))
    square.mul_(_as(beta2, matrix)).add_((gradient * gradient).mul_(_as(1 - beta2, matrix)))
    first, second = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
    denominator = (square.sqrt() / _as(second**0.5, matrix)).add_(_as(eps, matrix))
    _descend(matrix, mean / denominator, _as(lr / first, matrix))


def _decayed(gradient: Tensor, matrix: Tensor, decay: Any) -> Tensor:
    if isinstance(decay, Tensor):
        added: Tensor = _as(decay, matrix) * matrix
        return (gradient + added).to(gradient.dtype)
    return gradient.add(matrix, alpha=decay)


def _approach(mean: Tensor, gradient: Tensor, share: Any) -> None:
    if isinstance(share, Tensor):
        mean.add_((gradient - mean) * share)
    else:
        mean.lerp_(gradient, share)


def _descend(matrix: Tensor, direction: Tensor, lr: Any) -> None:
    if isinstance(lr, Tensor):
        matrix.sub_(direction * lr)
    else:
        matrix.sub_(direction, alpha=lr)


def _acts(value: float | Tensor) -> bool:
    """Whether any replica may have another value than 0. A tensor is not read."""
    return isinstance(value, Tensor) or value != 0


def _column(value: float | Tensor) -> Any:
    """A number for all rows, or one for each to be broadcast along them.

    What is made of them is made as torch makes it in Python, on the CPU and in double precision (1 − β^t of
    a β near 1 is mostly cancellation), until :func:`_as` takes it to the matrix.
    """
    return value.double()[:, None] if isinstance(value, Tensor) else value


def _as(value: float | Tensor, matrix: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    # At least float32, as torch's own kernels have it: to bfloat16 a decay of 0.1 % or a β of 0.999 is none.
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    # So few numbers are staged at once: the host does not wait, and later changes do not reach the copy.
    return value.to(matrix.device, dtype, non_blocking=True)
