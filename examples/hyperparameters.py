"""Dropout, label smoothing and weight decay found together, by four replicas that differ in them.
Run: torchrun --nproc-per-node 4 examples/hyperparameters.py

Few samples, and a fifth of the labels wrong: without regularisation the model learns the mistakes by heart.
"""

import os

import torch
import torch.distributed as dist

import hdet

STEPS = 600

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(2400, 20)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5))
labels = teacher(inputs).argmax(1)
wrong = torch.rand(len(labels)) < 0.2
labels = torch.where(wrong, torch.randint(5, labels.shape), labels)
train, held_out, test = (torch.arange(len(labels)).split([400, 1000, 1000])[i] for i in range(3))

model = torch.nn.Sequential(
    torch.nn.Linear(20, 128), torch.nn.ReLU(), torch.nn.Dropout(0.0), torch.nn.Linear(128, 5)
)
criterion = torch.nn.CrossEntropyLoss()

arms = hdet.Arms(dist.get_world_size())  # every rank an arm: gradients of its own
net = arms.wrap(model)
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.0)
probe = hdet.Probe(lambda rows: criterion(net(inputs[rows]), labels[rows]), [held_out], model=net)
batches = torch.Generator().manual_seed(rank)
torch.manual_seed(rank)  # every rank its own dropout masks

with hdet.Ensemble(
    optimizer,
    [hdet.Dropout(net), hdet.LabelSmoothing(criterion), hdet.WeightDecay()],
    gradients=arms,
    probe=probe,
    sync_every=20,
    total_steps=STEPS,
    model=net,
) as ensemble:
    for _ in range(STEPS):
        rows = train[torch.randint(len(train), (32,), generator=batches)]
        loss = criterion(net(inputs[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        record = ensemble.step(loss)
        if record is not None and rank == 0 and record.round % 5 == 4:
            found = "  ".join(f"{h.name} {h.base_after:.3f}" for h in record.hyperparameters)
            print(f"step {record.step:3d}  held-out loss {record.held_out_mean:.3f}  {found}")

if rank == 0:
    net.eval()
    with torch.no_grad():
        print(f"test loss {torch.nn.functional.cross_entropy(net(inputs[test]), labels[test]):.3f}")
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
