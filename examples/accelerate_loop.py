"""Accelerate's loop without a learning rate.
Run: python examples/accelerate_loop.py (or torchrun --nproc-per-node 2)

It stops half-way and goes on from what ``save_state`` wrote.
"""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hdet
from hdet.integrations.accelerate import prepare

STEPS, ACCUMULATE = 100, 2


def train(folder: Path, first: int, last: int) -> float:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    set_seed(0)
    inputs = torch.randn(2048, 20)
    teacher = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    loader = DataLoader(TensorDataset(inputs, teacher(inputs).detach()), batch_size=32, shuffle=True)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(wrapped(batch[0]), batch[1])

    probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model)  # before accelerator.prepare
    wrapped, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    auto = prepare(accelerator, optimizer, total_steps=STEPS, probe=probe)
    if first:
        accelerator.load_state(str(folder))
    done = first
    while done < last:
        for batch in loader:
            with accelerator.accumulate(wrapped):
                loss = loss_of(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                record = auto.step(loss)
            done += accelerator.sync_gradients
            if record and accelerator.is_main_process:
                print(f"step {record.step:4d}  lr {auto.get_last_lr()[0]:.2e}  loss {loss.item():.4f}")
            if done == last:
                break
    if last < STEPS:
        accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()
    return loss.item()


def main() -> None:
    with tempfile.TemporaryDirectory() as own:
        Accelerator(cpu=True)  # makes the process group
        (folder,) = broadcast_object_list([own])
        train(Path(folder), 0, STEPS // 2)
        loss = train(Path(folder), STEPS // 2, STEPS)
        Accelerator(cpu=True).print(f"final loss {loss:.4f}")


if __name__ == "__main__":
    main()
