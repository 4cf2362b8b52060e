"""Learning rate, weight decay and dropout found in the DDP job that one launches anyway, in one run.
Run: torchrun --nproc-per-node 4 examples/tune_in_ddp.py

No trials, no second job: the ranks share gradients while the loss falls, as DDP does. Once a window does not
improve, each trains on its own data at its own decay and dropout; hdet averages the weights and moves both.
Under Slurm: SCRIPT=examples/tune_in_ddp.py sbatch examples/launch/slurm.sh
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hdet

EPOCHS = 60

cuda = torch.cuda.is_available()
if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:  # one machine
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("nccl" if cuda else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")

torch.manual_seed(0)  # the same data and first weights everywhere
inputs = torch.randn(2400, 20)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5))
labels = teacher(inputs).argmax(1)
wrong = torch.rand(len(labels)) < 0.2  # a fifth, which a model without regularisation learns by heart
labels = torch.where(wrong, torch.randint(5, labels.shape), labels)
train, test = TensorDataset(inputs[:1600], labels[:1600]), (inputs[1600:], labels[1600:])
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=32, sampler=sampler)

net = torch.nn.Sequential(
    torch.nn.Linear(20, 128), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 5)
)
model = DistributedDataParallel(net.to(device), device_ids=[device.index] if cuda else None)
optimizer = torch.optim.AdamW(model.parameters())  # its learning rate is not read
criterion = torch.nn.functional.cross_entropy

probe, loader = hdet.Probe.set_aside(loader, model=model, criterion=criterion)  # of each rank its own
tune = hdet.AutoTune(optimizer, probe=probe, total_steps=EPOCHS * len(loader))
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        criterion(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        tune.step()
        if tune.finished:
            break
    if tune.finished:
        break
best = tune.finish_()  # the best weights seen, the same on every rank

if dist.get_rank() == 0:
    model.eval()
    with torch.no_grad():
        loss = criterion(net(test[0].to(device)), test[1].to(device))
    found = "  ".join(f"{name} {value:.2g}" for name, value in tune.values.items() if name != "lr/0")
    print(f"lr {best.rate:.2g}  {found}  step {best.step}  test loss {loss:.3f}")
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
