"""The pretrained encoders with a new head, as transformers puts one on them, and LoRA on their attention."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.workloads.tuned import LowRank

__all__ = ["add_lora_", "load"]

#: α over the rank, which is 8.
_SCALE = 2.0


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


def add_lora_(model: Any) -> None:
    """On query and value of every layer, rank 8, α = 16; beside them the head alone is trained."""
    model.bert.requires_grad_(False)
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        attention.query, attention.value = (
            LowRank(linear, _SCALE) for linear in (attention.query, attention.value)
        )
