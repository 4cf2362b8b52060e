"""Lightning without a learning rate.
Run: python examples/lightning_fit.py (or with two ranks: python examples/lightning_fit.py 2)
"""

import sys

import lightning.pytorch as L
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hdet
from hdet.integrations.lightning import HDETCallback

RANKS = int(sys.argv[1]) if len(sys.argv) > 1 else 1


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

    def loss_of(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return F.mse_loss(self.net(x.to(self.device)), y.to(self.device))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.loss_of(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("held out", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())  # its learning rate is not read


L.seed_everything(0, verbose=False)
inputs = torch.randn(4096, 20)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
data = TensorDataset(inputs, teacher(inputs).detach())
train, validate = torch.utils.data.random_split(data, [3584, 512])

module = Regression()
loader = DataLoader(train, batch_size=64 // RANKS, shuffle=True)
probe, loader = hdet.Probe.set_aside(module.loss_of, loader, model=module)  # some batches, never trained on
callback = HDETCallback(probe=probe)
trainer = L.Trainer(
    max_epochs=6,
    callbacks=[callback],
    accelerator="cpu",
    devices=RANKS,
    strategy="ddp" if RANKS > 1 else "auto",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, loader, DataLoader(validate, batch_size=64))
if trainer.is_global_zero:
    steps, found = callback.auto.steps, callback.auto.best
    print(
        f"steps {steps}  held out {trainer.callback_metrics['held out']:.5f}  best {found.kind}", flush=True
    )
