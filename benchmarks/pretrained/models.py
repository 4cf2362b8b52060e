"""The pretrained encoders with a new head, as transformers puts one on them, and LoRA on their attention."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LoRA", "add_lora_", "load"]

_RANK, _SCALE = 8, 2.0


def load(path: Path, labels: int, dropout: float) -> nn.Module:
    """BertForSequenceClassification; the head's weights are drawn from torch's random state. ``dropout`` is
    that of hidden layers and of the head, attention's own stays as it was."""
    bert = import_module("transformers.models.bert")
    saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    config = bert.BertConfig(**{**saved["config"], "num_labels": labels, "hidden_dropout_prob": dropout})
    model: nn.Module = bert.BertForSequenceClassification(config)
    found = model.load_state_dict({name: weight.float() for name, weight in saved["weights"].items()}, False)
    if found.unexpected_keys or any(not name.startswith("classifier.") for name in found.missing_keys):
        raise ValueError(f"{path} must hold the encoder's weights and no others, got {found}; fetch it again")
    return model


class LoRA(nn.Module):
    """A frozen linear layer and a product of two thin matrices beside it, the second of which begins at 0."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, _RANK, bias=False)
        self.up = nn.Linear(_RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the product's."""
        out: Tensor = self.frozen(x) + _SCALE * self.up(self.down(x))
        return out


def add_lora_(model: Any) -> None:
    """On query and value of every layer, rank 8, α = 16; beside them the head alone is trained."""
    model.bert.requires_grad_(False)
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        attention.query, attention.value = LoRA(attention.query), LoRA(attention.value)
