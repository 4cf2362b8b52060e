"""What a reader has who trains by a framework, beside the names of ``reader.py``: for fences that need it.

Nothing is imported from a framework before it is needed: pytest collects without them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import hdet

Names = dict[str, Any]


def of_transformers(names: Names) -> Names:
    """A language model, a dataset of tokens, and arguments without a learning rate."""
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    rows = (torch.arange(400)[:, None] + torch.arange(16)) % 32
    return {
        "language_model": LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)),
        "texts": [{"input_ids": row, "labels": row} for row in rows],
        "arguments": TrainingArguments(
            "out", max_steps=60, per_device_train_batch_size=8, save_strategy="no", report_to=[], use_cpu=True
        ),
    }


def of_lightning(names: Names) -> Names:
    """A module, a probe of its loss, and a Trainer that writes nothing."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    module = Module(names["model"])
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return {
        "module": module,
        "probe": hdet.Probe(lambda batch: module.training_step(batch, 0), names["held_out"], model=module),
        "Trainer": partial(pl.Trainer, accelerator="cpu", **quiet),
    }


def of_accelerate(names: Names) -> Names:
    """An accelerator, and a probe."""
    from accelerate import Accelerator

    probe = hdet.Probe(names["loss_of"], names["held_out"], model=names["model"])
    return {"accelerator": Accelerator(cpu=True), "probe": probe}


#: By the package that a fence needs.
READERS: dict[str, Callable[[Names], Names]] = {
    "transformers": of_transformers,
    "lightning": of_lightning,
    "accelerate": of_accelerate,
}
