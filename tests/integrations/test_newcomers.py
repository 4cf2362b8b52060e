"""What a new user writes after the quick start, ten lines at most in each framework: it runs, it learns, and
the file that is saved at the end holds the weights in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.integrations import llama

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own advice

PLAIN = """
import hdet
probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model)
auto = hdet.AutoLR(optimizer, total_steps=epochs * len(loader), probe=probe)
for epoch in range(epochs):
    for batch in loader:
        loss_of(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        auto.step()
best = auto.finish_()
"""

TRANSFORMERS = """
from transformers import TrainingArguments
from hdet.integrations.transformers import HDETTrainer
args = TrainingArguments("out", max_steps=60, per_device_train_batch_size=4, use_cpu=True, report_to=[])
trainer = HDETTrainer(model=model, args=args, train_dataset=dataset)
trainer.train()
best = trainer.auto.best
"""

LIGHTNING = """
import lightning.pytorch as L
from hdet.integrations.lightning import HDETCallback
callback = HDETCallback()
trainer = L.Trainer(max_epochs=epochs, callbacks=[callback], accelerator="cpu", logger=False)
trainer.fit(module, loader)
best = callback.auto.best
"""

ACCELERATE = """
from hdet.integrations.accelerate import prepare
probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
auto = prepare(accelerator, optimizer, total_steps=len(loader), probe=probe)
for batch in loader:
    accelerator.backward(loss_of(batch))
    optimizer.step()
    optimizer.zero_grad()
    auto.step()
best = auto.finish_()
"""


def run(script: str, **yours: Any) -> dict[str, Any]:
    assert len(script.strip().splitlines()) <= 10
    exec(compile(script, "a new user's script", "exec"), yours)  # as a file of theirs would run
    best = yours["best"]
    assert best.estimate == best.estimate, "a number"
    return yours


def yours(count: int) -> dict[str, Any]:
    """A model, an optimizer, a loader and a loss, as any user has them."""
    torch.manual_seed(0)
    x = torch.randn(count, 6)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss_of(batch: list[Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    data = TensorDataset(x, torch.sin(x[:, :1]) + x[:, 1:2])
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loader": DataLoader(data, batch_size=16, shuffle=True),
        "loss_of": loss_of,
        "epochs": 4,
    }


def test_a_plain_loop() -> None:
    mine = yours(1024)
    batch = list(mine["loader"].dataset.tensors)
    before = float(mine["loss_of"](batch))
    assert run(PLAIN, **mine)["best"].estimate < 0.3 * before


def test_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="make test-integrations installs Transformers")
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    dataset = [{name: row[name] for name in ("input_ids", "labels")} for row in llama.data()]
    with llama.launched(0, 1):
        mine = run(TRANSFORMERS, model=llama.model(), dataset=dataset)
    assert mine["best"].estimate < 3.4
    saved = llama.model()
    saved.load_state_dict(load_file(tmp_path / "out/checkpoint-60/model.safetensors"), strict=False)
    assert llama.digest(saved) == llama.digest(mine["model"])


def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = yours(16)["model"]

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    monkeypatch.chdir(tmp_path)
    module = Module()
    mine = run(LIGHTNING, module=module, loader=yours(1024)["loader"], epochs=4)
    assert mine["best"].estimate < 0.5
    (file,) = tmp_path.rglob("*.ckpt")
    saved = torch.load(file, weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], value) for name, value in module.state_dict().items())


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="make test-integrations installs Accelerate")
    from accelerate import Accelerator
    from safetensors.torch import load_file

    import hdet

    with llama.launched(0, 1):
        accelerator = Accelerator(cpu=True)
        mine = run(ACCELERATE, hdet=hdet, accelerator=accelerator, **yours(2048))
        accelerator.save_model(mine["model"], str(tmp_path))
    assert mine["best"].estimate < 0.8
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in mine["model"].state_dict().items())
