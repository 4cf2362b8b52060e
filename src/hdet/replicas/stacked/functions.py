"""What torch's functions do where a number they are given is a tensor: one replica's value within a pass.

The dropouts, ``F.cross_entropy`` and attention take their probability, smoothing and scale as Python numbers,
of which a pass has one. Within :class:`ByRow` they take a tensor of no dimensions as well, which
``torch.vmap`` maps like any other. All other calls are torch's own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["ByRow"]

#: Of SELU, −λα: what alpha dropout writes over what it drops.
_ALPHA = 1.7580993408473766
#: A share of kept values is divided by, which where nothing is kept must not be 0.
_LEAST_KEPT = 1e-12


class ByRow(TorchFunctionMode):
    """Within, torch's functions take tensors for the numbers that replicas differ in."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _INSTEAD.get(func, func)(*args, **(kwargs or {}))


# ---------------------------------------------------------------------- dropout


def _dropout(
    plain: Callable[..., Tensor],
    input: Tensor,
    p: float | Tensor = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    if not isinstance(p, Tensor):
        return plain(input, p, training, inplace)
    if not training:
        return input
    # Not in the type of what is dropped: bfloat16 has too few numbers below 1 to distinguish rates.
    kept = torch.rand(_mask_shape(plain, input), dtype=torch.float32, device=input.device) >= p
    share = (1 - p).clamp(min=_LEAST_KEPT)
    if plain in (F.alpha_dropout, F.feature_alpha_dropout):
        # As torch has it: mean and variance of what comes out are those of what went in.
        a = torch.rsqrt((_ALPHA**2 * p + 1) * share)
        dropped = torch.where(kept, input, -_ALPHA) * a + _ALPHA * a * p
    else:
        dropped = torch.where(kept, input, 0) / share
    return input.copy_(dropped) if inplace else dropped


def _mask_shape(plain: Callable[..., Tensor], input: Tensor) -> list[int]:
    """Every value has a draw of its own, or every channel."""
    shape = list(input.shape)
    if plain in (F.dropout, F.alpha_dropout):
        return shape
    # One sample without a batch, where torch takes it for one.
    single = (plain is F.dropout1d and len(shape) == 2) or (plain is F.dropout3d and len(shape) == 4)
    channels = 1 if single else 2
    return shape[:channels] + [1] * (len(shape) - channels)


# ---------------------------------------------------------------------- label smoothing


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float | Tensor = 0.0,
) -> Tensor:
    """(1 − s)·L(0) + s·L(1): in torch's definition, too, the loss is linear in its smoothing s."""
    entropy = partial(
        F.cross_entropy,
        weight=weight,
        size_average=size_average,
        ignore_index=ignore_index,
        reduce=reduce,
        reduction=reduction,
    )
    if not isinstance(label_smoothing, Tensor):
        return entropy(input, target, label_smoothing=label_smoothing)
    if size_average is not None or reduce is not None:
        raise TypeError(
            "StackedReplicas.losses: F.cross_entropy must be given reduction= where its label_smoothing is "
            f"explored, got size_average={size_average!r}, reduce={reduce!r}; write reduction='mean', 'sum' "
            "or 'none'"
        )
    if target.is_floating_point():
        even = entropy(input, target, label_smoothing=1.0)
    else:
        even = _even_entropy(input, target, weight, ignore_index, reduction)
    # Without smoothing a class that is ruled out (a logit of −∞) has no part in the loss.
    smoothed = torch.where(label_smoothing > 0, label_smoothing * even, 0)
    plain = entropy(input, target)
    return ((1 - label_smoothing) * plain + smoothed).to(plain.dtype)


def _even_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """L(1), where every class is as right as any other. torch's own selects samples, which no slice can."""
    classes = 0 if input.dim() == 1 else 1
    log_p = F.log_softmax(input, classes)
    if weight is not None:
        log_p = log_p * weight.view(-1, *[1] * (input.dim() - classes - 1))
    counted = target != ignore_index
    each = torch.where(counted, -log_p.mean(classes), 0)
    if reduction != "mean":
        return each.sum() if reduction == "sum" else each
    # As in the plain loss, a mean is over the weights of the right classes.
    if weight is None:
        return each.sum() / counted.sum()
    right = torch.where(counted, target, 0).long()  # bytes would be taken for a mask
    return each.sum() / torch.where(counted, weight[right], 0).sum()


# ---------------------------------------------------------------------- attention


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float | Tensor = 0.0,
    is_causal: bool = False,
    *,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if isinstance(scale, Tensor):
        # The logits' factor is the query's as well; what torch divides them by is taken out again.
        query = query * (scale * math.sqrt(query.shape[-1]))
        scale = None
    plain = F.scaled_dot_product_attention
    if not isinstance(dropout_p, Tensor):
        return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        shared = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(shared, -3), value.repeat_interleave(shared, -3)
    logits = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    weights = _softmax_of_seen(logits, attn_mask, is_causal)
    return _dropout(F.dropout, weights, dropout_p) @ value


def _softmax_of_seen(logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """Who sees nothing at all has weights of 0, as torch has it."""
    if is_causal:
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        logits = logits.masked_fill(~seen, -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    blind = (logits == -math.inf).all(-1, keepdim=True)
    return logits.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)


def _multi_head(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """``nn.MultiheadAttention``: its weights are computed by torch, then dropped and applied."""
    plain = F.multi_head_attention_forward
    given = inspect.signature(plain).bind(*args, **kwargs)
    given.apply_defaults()
    call = given.arguments
    p = call["dropout_p"]
    if not isinstance(p, Tensor):
        return plain(*args, **kwargs)
    if not call["training"]:
        return plain(**{**call, "dropout_p": 0.0})
    _, weights = plain(**{**call, "dropout_p": 0.0, "need_weights": True, "average_attn_weights": False})
    assert weights is not None, "they were asked for"
    dropped = _dropout(F.dropout, weights, p)
    attended = dropped @ _values(call)  # …, heads, length, width of a head
    # As torch returns it: length first, heads side by side.
    output = attended.movedim(-2, 0).flatten(-2)
    output = F.linear(output, call["out_proj_weight"], call["out_proj_bias"])
    if not call["need_weights"]:
        return output, None
    return output, dropped.mean(-3) if call["average_attn_weights"] else dropped


def _values(call: Mapping[str, Any]) -> Tensor:
    """What attention weighs: (batch,) heads, length, width of a head."""
    value: Tensor = call["value"]
    packed, bias = call["in_proj_weight"], call["in_proj_bias"]
    weight = call["v_proj_weight"] if call["use_separate_proj_weight"] else packed.chunk(3)[2]
    value = F.linear(value, weight, None if bias is None else bias.chunk(3)[2])
    if call["bias_v"] is not None:
        extra = call["bias_v"].view(*[1] * (value.dim() - 1), -1)
        value = torch.cat([value, extra.expand(1, *value.shape[1:])])
    if call["add_zero_attn"]:
        value = torch.cat([value, torch.zeros_like(value[:1])])
    return value.view(*value.shape[:-1], call["num_heads"], -1).movedim(0, -2)


#: What replaces which of torch's functions.
_INSTEAD: dict[Any, Callable[..., Any]] = {
    **{
        plain: partial(_dropout, plain)
        for plain in (
            F.dropout,
            F.dropout1d,
            F.dropout2d,
            F.dropout3d,
            F.alpha_dropout,
            F.feature_alpha_dropout,
        )
    },
    F.cross_entropy: _cross_entropy,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
}
