"""EfficientNet-Lite0 (Tan and Le 2019, made for phones: ReLU6, no squeeze-and-excitation) with a new head.

Modules are created in the order of the published checkpoint, so that weights are matched by their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

__all__ = ["LITE0", "EfficientNetLite", "load_lite", "named"]

#: Channels of stem and head; of each stage blocks, kernel, stride, expansion, channels; the size of pictures.
LITE0: dict[str, Any] = {
    "stem": 32,
    "stages": [
        *([1, 3, 1, 1, 16], [2, 3, 2, 6, 24], [2, 5, 2, 6, 40], [3, 3, 2, 6, 80]),
        *([3, 5, 1, 6, 112], [4, 5, 2, 6, 192], [1, 3, 1, 6, 320]),
    ],
    "head": 1280,
    "pixels": 128,
}


class _Convolution(nn.Conv2d):
    """Padded as TensorFlow does: what is odd goes to the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride, size = self.kernel_size[0], self.stride[0], x.shape[-1]
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return super().forward(pad(x, [missing // 2, missing - missing // 2] * 2) if missing else x)


def _unit(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = _Convolution(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU6()]


class _Block(nn.Sequential):
    """Channels are expanded, convolved each by itself, and projected; added to what came in, if it fits."""

    def __init__(self, inputs: int, kernel: int, stride: int, expansion: int, outputs: int) -> None:
        wide = inputs * expansion
        expanded = _unit(inputs, wide) if expansion > 1 else []
        super().__init__(*expanded, *_unit(wide, wide, kernel, stride, wide), *_unit(wide, outputs)[:-1])
        self.added = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + out if self.added else out


class EfficientNetLite(nn.Sequential):
    """From square pictures, bytes of (picture, row, column, channel), to logits; ``flips``: left to right at
    random while it trains."""

    def __init__(
        self,
        labels: int,
        dropout: float,
        flips: bool,
        *,
        stem: int,
        stages: Sequence[Sequence[int]],
        head: int,
        pixels: int,
    ) -> None:
        blocks, inputs = [], stem
        for count, kernel, stride, expansion, outputs in stages:
            for number in range(count):
                blocks.append(_Block(inputs, kernel, 1 if number else stride, expansion, outputs))
                inputs = outputs
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
        super().__init__(*_unit(3, stem, 3, 2), *blocks, *_unit(inputs, head), *pool, nn.Linear(head, labels))
        self.flips, self.pixels = flips, pixels

    def forward(self, images: Tensor) -> Tensor:
        x = (images.permute(0, 3, 1, 2).float() - 127) / 128
        if self.flips and self.training:
            turned = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
            x = torch.where(turned, x.flip(3), x)
        x = interpolate(x, size=(self.pixels, self.pixels), mode="bilinear")
        return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]


def load_lite(path: Path, labels: int, dropout: float, flips: bool) -> EfficientNetLite:
    """All but the head as the file has it; the head's weights are drawn from torch's random state."""
    saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model = EfficientNetLite(labels, dropout, flips, **saved["config"])
    head = {name: weight for name, weight in model.state_dict().items() if name not in saved["weights"]}
    model.load_state_dict({**saved["weights"], **head})
    return model


def named(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """A checkpoint with names of its own, by ours."""
    *_, bias = weights.values()
    names = EfficientNetLite(bias.numel(), 0.0, False, **config).state_dict()
    return dict(zip(names, weights.values(), strict=True))
