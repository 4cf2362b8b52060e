"""One run tunes everything, on eight replicas in one process.
Run: python examples/auto_tune.py

Few samples, and a fifth of the labels wrong: without regularisation the model learns the mistakes by heart.
No learning rate, no dropout and no decay is given.
"""

import torch

import hdet

torch.manual_seed(0)
inputs = torch.randn(2400, 20)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5))
labels = teacher(inputs).argmax(1)
wrong = torch.rand(len(labels)) < 0.2
labels = torch.where(wrong, torch.randint(5, labels.shape), labels)
train, held_out, test = torch.arange(len(labels)).split([400, 1024, 976])

model = torch.nn.Sequential(
    torch.nn.Linear(20, 128), torch.nn.ReLU(), torch.nn.Dropout(0.0), torch.nn.Linear(128, 5)
)
criterion = torch.nn.CrossEntropyLoss()


def loss_of(net, rows):
    return criterion(net(inputs[rows]), labels[rows])


replicas = hdet.StackedReplicas(model, torch.optim.AdamW(model.parameters()), 8, gradients="none")
compute = replicas.capture(loss_of)  # losses and gradients of all; a GPU replays them from a recording
tune = hdet.AutoTune(
    replicas.optimizer,  # explores weight decay, dropout and label smoothing: what it finds
    probe=hdet.Probe(compute, held_out.split(128), model=model),
    total_steps=1500,
)
while not tune.finished:
    rows = train[torch.randint(len(train), (8 * 32,))]  # 32 samples for each replica
    compute(rows)
    replicas.optimizer.step()
    replicas.optimizer.zero_grad()
    record = tune.step()
    if record is not None and record.round % 5 == 4:
        found = "  ".join(f"{name} {value:.2g}" for name, value in tune.values.items())
        print(f"step {record.step:4d}  held-out loss {record.horizon[0].loss_mean:.3f}  {found}")

best = tune.finish_()
model.eval()
with torch.no_grad():
    loss = torch.nn.functional.cross_entropy(model(inputs[test]), labels[test])
print(f"the {best.kind} of step {best.step}: {best.estimate:.3f} expected, test loss {loss:.3f}")
