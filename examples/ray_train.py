"""AutoLR on two workers of Ray Train, with its checkpoints.
Run: python examples/ray_train.py

Batches are set aside before Ray prepares the loader; the state goes into the checkpoint, beside the model's.
"""

import os
import tempfile

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hdet

EPOCHS = 4


def loop(config: dict) -> None:
    torch.manual_seed(0)
    x = torch.randn(80 * 32, 10)
    loader = DataLoader(TensorDataset(x, torch.sin(x[:, :1]) + x[:, 1:2]), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model)  # 8 batches of 80
    loader, wrapped = prepare_data_loader(loader), prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters())
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=EPOCHS * len(loader))  # the process group is there
    parts = {"model": model, "optimizer": optimizer, "auto": auto}
    first = 0
    if (checkpoint := train.get_checkpoint() or config["checkpoint"]) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "parts.pt"), weights_only=True)
        first = saved.pop("epoch")
        for name, state in saved.items():  # the model, the optimizer, then what moves it
            parts[name].load_state_dict(state)
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            loss = F.mse_loss(wrapped(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            auto.step(loss)
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if train.get_context().get_world_rank() == 0:  # nothing diverges here: one rank's state is all
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save({**states, "epoch": epoch + 1}, os.path.join(folder, "parts.pt"))
                kept = train.Checkpoint.from_directory(folder)
            weights = sum(p.double().sum().item() for p in model.parameters())
            told = {"loss": loss.item(), "lr": auto.get_last_lr()[0], "step": auto.steps, "weights": weights}
            train.report(told, checkpoint=kept)


def fit(folder: str, checkpoint: train.Checkpoint | None = None) -> train.Result:
    return TorchTrainer(
        loop,
        train_loop_config={"checkpoint": checkpoint},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=folder),
    ).fit()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    result = fit(tempfile.mkdtemp(prefix="hdet-ray-"))
    print("step {step}  loss {loss:.5f}  lr {lr:.1e}".format(**result.metrics))
