"""Pictures and volumes: classes, distances, views, colours, pixels, autoencoders."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import generator
from benchmarks.zoo.data import arrays, bits, split, tensor, three_parts
from benchmarks.zoo.models import Encoder, convolutions, cross_entropy, images_net, squares, yes_or_no
from benchmarks.zoo.task import Batch, Parts, Task, task

__all__ = ["TASKS", "grey"]


def grey(file: str, train: int | None = None) -> Parts:
    """Grey pictures between 0 and 1, and their classes."""
    found = arrays(file)
    return split(tensor(found["X"]).float()[:, None] / 255, tensor(found["y"]), train=train)


def _noisy_probe() -> Parts:
    """The probe's pictures are noisy, those trained on and tested on are not."""
    parts = grey("img_notmnist10k.npz", train=4000)
    x, y = parts.probe
    noise = torch.randn(x.shape, generator=generator(0, "zoo noise"))
    return Parts(parts.train, (x + 0.3 * noise, y), parts.test)


def _same(file: str) -> Parts:
    """Pictures that are to be found again."""
    parts = grey(file)
    return three_parts(*((one[0], one[0]) for one in (parts.train, parts.probe, parts.test)))


def _patches() -> Parts:
    """A picture as 49 patches of 4 × 4."""
    parts = grey("img_fashion3600.npz")

    def cut(batch: Batch) -> Batch:
        return F.unfold(batch[0], 4, stride=4).transpose(1, 2).contiguous(), batch[1]

    return Parts(cut(parts.train), cut(parts.probe), cut(parts.test))


def _photographs() -> Parts:
    found = arrays("img_cifar10_16px.npz")
    x, test = (tensor(found[f"X_{part}"]).float().permute(0, 3, 1, 2) / 255 for part in ("train", "test"))
    order = torch.randperm(len(x), generator=generator(0, "zoo photographs"))
    x = x[order]
    return three_parts([x[:3976]], [x[3976:]], [test])


def _two_views(batch: Batch, draw: torch.Generator) -> Batch:
    """Each photograph twice, flipped or not, shifted, brighter or darker, with noise."""
    (x,) = batch

    def view() -> Tensor:
        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=draw, device=x.device)

        rows = len(x)
        out = torch.where(uniform(rows, 1, 1, 1) < 0.5, x.flip(3), x)
        places = torch.arange(16, device=x.device)
        shift = (uniform(rows, 1) * 9).long() - 4
        columns = (places + shift).clamp(0, 15)[:, None, None, :].expand(-1, 3, 16, -1)
        out = out.gather(3, columns) * (0.6 + 0.8 * uniform(rows, 3, 1, 1))
        return out + 0.1 * torch.randn(out.shape, generator=draw, device=x.device)

    return view(), view()


def _agree(model: nn.Module, batch: Batch) -> Tensor:
    """Which of the batch's other views belongs to this one, at a temperature of 0.2."""
    a, b = (F.normalize(model(view)) for view in batch)
    scores = a @ b.T / 0.2
    wanted = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2


def _colours() -> Parts:
    """Grey, and the colours as they differ from it."""
    parts = _photographs()

    def cut(batch: Batch) -> Batch:
        middle = batch[0].mean(1, keepdim=True)
        return middle, batch[0] - middle

    return Parts(cut(parts.train), cut(parts.probe), cut(parts.test))


def _signs() -> Parts:
    """Rows of four pictures of the same sign; no sign occurs in two parts."""
    found = arrays("img_omniglot_small.npz")
    x, y = tensor(found["X"]).float()[:, None] / 255, tensor(found["y"])
    kinds = torch.randperm(242, generator=generator(0, "zoo signs"))
    parts = []
    for some in kinds.tensor_split((160, 201)):
        rows = torch.stack([torch.nonzero(y == kind).flatten()[:20] for kind in some.tolist()])
        fours = rows.view(-1, 4)
        order = torch.randperm(len(fours), generator=generator(1, "zoo signs"))
        parts.append((x[fours[order]], y[fours[order][:, 0]]))
    return three_parts(*parts)


def _distances(model: nn.Module, batch: Batch) -> Tensor:
    """The first picture of each row belongs to the mean of the three others, not to another row's."""
    x, kinds = batch
    points = model(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    scores = -torch.cdist(points[:, 0], points[:, 1:].mean(1)).square()
    same = (kinds[:, None] == kinds) & ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    return F.cross_entropy(scores.masked_fill(same, -1e4), torch.arange(len(x), device=x.device))


def _membranes() -> Parts:
    """Squares of 64 × 64 pixels."""
    found = arrays("seg_em_membrane.npz")
    x, mask = tensor(found["X"]).float() / 255 - 0.5, bits(found["mask"])

    def squares_of(pictures: Tensor) -> Tensor:
        return pictures.unfold(1, 64, 64).unfold(2, 64, 64).flatten(0, 2)[:, None].contiguous()

    def part(first: int, last: int) -> tuple[Tensor, Tensor]:
        return squares_of(x[first:last]), squares_of(mask[first:last])

    return three_parts(part(0, 20), part(20, 24), part(24, 30))


class _UNet(nn.Module):
    """Twice down and twice up, with a way past each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.begin = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.ModuleList(convolutions(width * k, width * 2 * k, norm=True) for k in (1, 2))
        self.up = nn.ModuleList(nn.ConvTranspose2d(width * 2 * k, width * k, 2, stride=2) for k in (2, 1))
        self.head = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x).relu()
        past = []
        for layer in self.down:
            past.append(x)
            x = layer(x)
        for layer in self.up:
            x = (layer(x) + past.pop()).relu()
        out: Tensor = self.head(x)
        return out


def _voxels() -> Parts:
    x = bits(arrays("vox_modelnet_chair_monitor.npz")["X"])[:, None, ::2, ::2, ::2].contiguous()
    return split(x, x)


def _voxel_autoencoder() -> nn.Sequential:
    return nn.Sequential(
        convolutions(1, 16, 32, 64, dimensions=3, norm=False),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Linear(32, 512),
        nn.ReLU(),
        nn.Unflatten(1, (64, 2, 2, 2)),
        nn.ConvTranspose3d(64, 32, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose3d(32, 16, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose3d(16, 1, 2, stride=2),
    )


def _picture_autoencoder() -> nn.Sequential:
    return nn.Sequential(
        convolutions(1, 16, 32, norm=False),
        nn.Flatten(),
        nn.Linear(32 * 49, 32),
        nn.Linear(32, 32 * 49),
        nn.ReLU(),
        nn.Unflatten(1, (32, 7, 7)),
        nn.ConvTranspose2d(32, 16, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 2, stride=2),
    )


def _colour_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 3, 3, padding=1),
    )


TASKS: tuple[Task, ...] = (
    task(
        "fonts-batch-norm",
        "font-letters",
        600,
        data=partial(grey, "img_notmnist10k.npz"),
        model=lambda: images_net(1, 32, 64, 64, outputs=10),
        loss=cross_entropy,
        batch=64,
        also=("lion",),
    ),
    task(
        "fonts-noisy-probe",
        "font-letters",
        600,
        data=_noisy_probe,
        model=lambda: images_net(1, 32, 64, 64, outputs=10, norm=False),
        loss=cross_entropy,
        batch=64,
    ),
    task(
        "clothes-autoencoder",
        "clothes",
        800,
        data=partial(_same, "img_fashion3600.npz"),
        model=_picture_autoencoder,
        loss=squares,
        batch=64,
        also=("lion",),
    ),
    task(
        "clothes-vision-transformer",
        "clothes",
        600,
        data=_patches,
        model=lambda: Encoder(64, 10, 49, inputs=16),
        loss=cross_entropy,
        batch=64,
        also=("muon",),
    ),
    task(
        "signs-many-classes",
        "handwriting",
        800,
        data=partial(grey, "img_omniglot_small.npz"),
        model=lambda: images_net(1, 32, 64, 128, outputs=242),
        loss=cross_entropy,
        batch=64,
    ),
    task(
        "signs-distances",
        "handwriting",
        500,
        data=_signs,
        model=lambda: images_net(1, 32, 32, 32, outputs=32),
        loss=_distances,
        batch=20,
        rows=20,
    ),
    task(
        "photographs-two-views",
        "photographs",
        500,
        data=_photographs,
        model=lambda: images_net(3, 32, 64, 128, outputs=64),
        loss=_agree,
        batch=128,
        rows=128,
        augment=_two_views,
    ),
    task(
        "photographs-colours",
        "photographs",
        600,
        data=_colours,
        model=_colour_net,
        loss=squares,
        batch=32,
    ),
    task(
        "membranes-pixels",
        "membranes",
        400,
        data=_membranes,
        model=lambda: _UNet(16),
        loss=yes_or_no,
        batch=8,
    ),
    task(
        "voxels-autoencoder",
        "voxels",
        400,
        data=_voxels,
        model=_voxel_autoencoder,
        loss=yes_or_no,
        batch=16,
    ),
)
