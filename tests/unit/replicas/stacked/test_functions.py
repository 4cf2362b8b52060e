"""torch's functions, given one replica's value as a tensor, do what they do given the number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hdet.replicas.stacked.functions import ByRow

ROWS = torch.tensor([0.0, 0.25, 0.6], dtype=torch.float64)


def by_row(fn: Callable[..., Any], rows: Tensor = ROWS, *tensors: Tensor) -> Any:
    """What ``fn`` returns for each row's number."""

    def one(number: Tensor, *parts: Tensor) -> Any:
        with ByRow():
            return fn(number, *parts)

    with sdpa_kernel(SDPBackend.MATH):  # as in StackedReplicas.losses
        return torch.vmap(one, (0, *[None] * len(tensors)), randomness="different")(rows, *tensors)


# ---------------------------------------------------------------------- dropout

KINDS = [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_drops_at_its_own_rate_by_a_mask_of_its_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count = 40_000
    rows = torch.tensor([0.0, 0.1, 0.1, 0.5, 0.999])
    dropped = by_row(lambda p: F.dropout(torch.full((count,), 3.0, dtype=dtype), p), rows)
    assert dropped.dtype == dtype
    for p, row in zip(rows.tolist(), dropped, strict=True):
        kept = row[row != 0]
        assert abs(len(kept) / count - (1 - p)) <= 5 * math.sqrt(p * (1 - p) / count)
        torch.testing.assert_close(kept, torch.full_like(kept, 3 / (1 - p)))
    assert torch.equal(dropped[0], torch.full((count,), 3.0, dtype=dtype)), "without dropout, bit for bit"
    assert not torch.equal(dropped[1], dropped[2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_of_0_and_evaluation_change_nothing_and_a_rate_of_1_leaves_nothing(kind: Any) -> None:
    x = torch.randn(2, 3, 4, 5, 6 if kind is F.dropout3d else 5)
    x = x[..., 0, 0] if kind is F.dropout1d else x[..., 0] if kind is F.dropout2d else x
    zeros, ones = torch.zeros(2), torch.ones(2)
    assert torch.equal(by_row(lambda p: kind(x, p, True), zeros), torch.stack([x, x]))
    out = by_row(lambda p: kind(x, p, False) + 0 * p, ones / 2)
    assert torch.equal(out, torch.stack([x, x]))
    nothing = by_row(lambda p: kind(x, p, True), ones)
    assert nothing.isfinite().all()
    if kind not in (F.alpha_dropout, F.feature_alpha_dropout):
        assert not nothing.any()


@pytest.mark.parametrize(
    ("kind", "shape", "channels"),
    [
        (F.dropout1d, (50, 40, 7), 2),
        (F.dropout1d, (500, 7), 1),
        (F.dropout2d, (50, 40, 3, 3), 2),
        (F.dropout3d, (50, 40, 2, 2, 2), 2),
        (F.dropout3d, (500, 2, 2, 2), 1),
        (F.feature_alpha_dropout, (50, 40, 3, 3), 2),
    ],
)
def test_channels_are_dropped_whole_where_torch_drops_them_whole(
    kind: Any, shape: tuple[int, ...], channels: int
) -> None:
    torch.manual_seed(0)
    out = by_row(lambda p: kind(torch.ones(shape), p, True), torch.tensor([0.25, 0.6]))
    flat = out.flatten(1, channels).flatten(2)
    assert torch.equal(flat, flat[..., :1].expand_as(flat)), "one draw for a channel"
    for p, row in zip((0.25, 0.6), flat[..., 0], strict=True):
        dropped = (row == row.min()).double().mean()
        assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / row.numel())


@pytest.mark.parametrize("kind", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_has_the_two_values_that_torch_has(kind: Any) -> None:
    x, p = torch.full((400, 50, 1), 0.7), 0.3
    ours = by_row(lambda p: kind(x, p, True), torch.tensor([p]))[0]
    torch.testing.assert_close(ours.unique(), kind(x, p, True).unique(), rtol=1e-5, atol=1e-6)


def test_dropout_in_place_writes_there() -> None:
    def fn(p: Tensor) -> Tensor:
        x = torch.ones(1000) * (p + 1)
        assert F.dropout(x, p, True, True) is x
        return x

    out = by_row(fn, torch.tensor([0.0, 0.5]))
    assert set(out[0].tolist()) == {1.0}
    assert set(out[1].tolist()) == {0.0, 3.0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_number_is_torchs_own(kind: Any) -> None:
    x = torch.randn(4, 3, 5, 5, 5)
    x = x[..., 0, 0] if kind is F.dropout1d else x[..., 0] if kind is F.dropout2d else x
    torch.manual_seed(1)
    theirs = kind(x, 0.4, True)
    torch.manual_seed(1)
    with ByRow():
        assert torch.equal(kind(x, 0.4, True), theirs)


# ---------------------------------------------------------------------- label smoothing


def classes(kind: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = {"one sample": (5,), "sequences": (4, 5, 6)}.get(kind, (8, 5))
    logits = torch.randn(shape, generator=draw, dtype=torch.float64)
    if kind == "probabilities":
        return logits, torch.rand(shape, generator=draw, dtype=torch.float64).softmax(1)
    where = () if kind == "one sample" else (shape[0], *shape[2:])
    return logits, torch.randint(5, where, generator=draw)


@pytest.mark.parametrize("kind", ["samples", "one sample", "sequences", "probabilities"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_cross_entropy_is_smoothed_by_each_row_s_share(
    kind: str, reduction: Any, weighted: bool, ignored: int
) -> None:
    logits, target = classes(kind)
    if kind == "probabilities":
        ignored = -100
    weight = torch.tensor([0.5, 1.0, 2.0, 0.1, 1.5], dtype=torch.float64) if weighted else None
    criterion = nn.CrossEntropyLoss(weight, ignore_index=ignored, reduction=reduction)

    def fn(smoothing: Tensor, logits: Tensor) -> Tensor:
        criterion.label_smoothing = smoothing  # type: ignore[assignment]
        return criterion(logits, target)  # type: ignore[no-any-return]

    logits.requires_grad_()
    losses = by_row(fn, ROWS, logits)
    for s, loss in zip(ROWS.tolist(), losses, strict=True):
        criterion.label_smoothing = s
        expected = criterion(logits, target)
        torch.testing.assert_close(loss, expected, equal_nan=True)
        ours, theirs = (torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (loss, expected))
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_a_class_that_is_ruled_out_does_not_matter_without_smoothing() -> None:
    logits = torch.tensor([[1.0, 2.0, -math.inf]], requires_grad=True)
    target = torch.tensor([0])
    losses = by_row(lambda s: F.cross_entropy(logits, target, label_smoothing=s), torch.tensor([0.0, 0.1]))
    assert losses[0] == F.cross_entropy(logits, target)
    assert losses[1] == math.inf
    (gradient,) = torch.autograd.grad(losses[0], logits)
    assert gradient.isfinite().all()


def test_legacy_arguments_are_refused() -> None:
    logits, target = classes("samples")
    with pytest.raises(
        TypeError, match=r"must be given reduction=.*got size_average=True.*; write reduction="
    ):
        by_row(lambda s: F.cross_entropy(logits, target, size_average=True, label_smoothing=s))


# ---------------------------------------------------------------------- attention


def heads() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 8, generator=draw, dtype=torch.float64)
    key, value = torch.randn(2, 2, 4, 5, 8, generator=draw, dtype=torch.float64)
    return query, key, value


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": torch.arange(30).view(6, 5) % 4 > 0},
    "added": {"attn_mask": torch.linspace(-1, 1, 30, dtype=torch.float64).view(6, 5)},
    "who sees nothing": {"attn_mask": torch.arange(6)[:, None].expand(6, 5) > 0},
}


@pytest.mark.parametrize("kind", list(MASKS))
@pytest.mark.parametrize("what", ["scale", "dropout_p", "both"])
def test_attention_at_each_row_s_temperature(kind: str, what: str) -> None:
    tensors = heads()

    def fn(number: Tensor | float) -> Tensor:
        options: dict[str, Any] = dict(MASKS[kind])
        if what != "dropout_p":
            options["scale"] = number + 0.1
        if what != "scale":
            options["dropout_p"] = 0 * number
        return F.scaled_dot_product_attention(*tensors, **options)

    for row, number in zip(by_row(fn), ROWS.tolist(), strict=True):
        torch.testing.assert_close(row, fn(number))


def test_heads_that_share_keys() -> None:
    query, key, value = heads()
    key, value = key[:, :2], value[:, :2]

    def fn(number: Tensor | float) -> Tensor:
        attend = F.scaled_dot_product_attention
        return attend(query, key, value, dropout_p=0 * number, scale=number, enable_gqa=True)

    for row, number in zip(by_row(fn), ROWS.tolist(), strict=True):
        torch.testing.assert_close(row, fn(number))


def test_attention_drops_weights_at_each_row_s_rate() -> None:
    torch.manual_seed(0)
    x, unit = torch.zeros(200, 10, 10), torch.eye(10).expand(200, 10, 10)
    seen = by_row(lambda p: F.scaled_dot_product_attention(x, x, unit, dropout_p=p))
    for p, weights in zip(ROWS.tolist(), seen, strict=True):
        kept = weights[weights != 0]
        assert abs(len(kept) / weights.numel() - (1 - p)) <= 5 * math.sqrt(p * (1 - p) / weights.numel())
        torch.testing.assert_close(kept, torch.full_like(kept, 0.1 / (1 - p)))


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("need_weights", ["no", "averaged", "each"])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 3, "vdim": 7}]
)
def test_multi_head_attention_is_torchs_own(
    batched: bool, need_weights: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, dropout=0.0, batch_first=batched, dtype=torch.float64, **options)
    shapes = [(5, 8), (4, options.get("kdim", 8)), (4, options.get("vdim", 8))]
    inputs = [torch.randn((3, *s) if batched else s, dtype=torch.float64) for s in shapes]
    asked = {"need_weights": need_weights != "no", "average_attn_weights": need_weights != "each"}
    asked["attn_mask"] = torch.arange(20).view(5, 4) % 3 == 0  # type: ignore[assignment]

    def fn(p: Tensor | float) -> Any:
        attention.dropout = p  # type: ignore[assignment]
        output, weights = attention(*inputs, **asked)
        return output if weights is None else (output, weights)

    ours, theirs = by_row(fn, torch.zeros(2)), fn(0.0)
    for a, b in zip(*[[x] if isinstance(x, Tensor) else x for x in (ours, theirs)], strict=True):
        torch.testing.assert_close(a, torch.stack([b, b]))
    attention.eval()
    ours, theirs = by_row(lambda p: (fn(p), p)[0], ROWS + 0.1), fn(0.7)
    output = ours if isinstance(ours, Tensor) else ours[0]
    torch.testing.assert_close(output[1], theirs if isinstance(theirs, Tensor) else theirs[0])


def test_multi_head_attention_drops_at_each_row_s_rate() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    x = torch.randn(50, 10, 8, dtype=torch.float64)

    def fn(p: Tensor) -> Any:
        attention.dropout = p  # type: ignore[assignment]
        return attention(x, x, x, average_attn_weights=False)

    value = F.linear(x, *(t.chunk(3)[2] for t in (attention.in_proj_weight, attention.in_proj_bias)))
    value = value.view(50, 10, 2, 4).transpose(1, 2)
    plain = attention(x, x, x, average_attn_weights=False)[1]
    outputs, dropped = by_row(fn)
    for p, output, weights in zip(ROWS.tolist(), outputs, dropped, strict=True):
        kept = weights != 0
        assert abs(kept.double().mean() - (1 - p)) <= 5 * math.sqrt(p * (1 - p) / kept.numel())
        torch.testing.assert_close(weights, kept * plain / (1 - p))
        seen = (weights @ value).transpose(1, 2).flatten(2)
        torch.testing.assert_close(output, attention.out_proj(seen))
