"""Fine-tuning on few photographs: a small ResNet that knows seven classes of CIFAR-10 learns the other three.

The body is pretrained once, with BatchNorm, on all training images of the seven; it is then given a new head
and trained as a whole on a few images of aeroplanes, cats and horses, over and over, flipped and shifted at
random. 512 further images of the three are the probe's, and all the rest of them are held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.workloads.base import Workload, at_scale, generator, in_parts, seeded, shuffled
from benchmarks.workloads.cifar import CLASSES, Scaled, augmented, decoded, kept, scaling
from benchmarks.workloads.images import ResNet, loss, on_device

__all__ = ["make"]

#: Aeroplane, cat and horse.
_NEW = (0, 3, 7)
_PROBE_IMAGES, _PROBE_BATCH = 512, 256
_PRETRAINING_LR = 0.01


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    images: int
    stem_stride: int
    channels: tuple[int, int, int]
    pixels: int
    shift: int
    pretraining_steps: int
    pretraining_batch: int


_SIZES = {
    "cpu": _Size(400, 16, 400, 2, (8, 16, 32), 16, 2, pretraining_steps=800, pretraining_batch=64),
    "gpu": _Size(600, 64, 1500, 1, (32, 64, 128), 32, 4, pretraining_steps=1500, pretraining_batch=128),
}


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from the file that :func:`.cifar.decoded` reads; the first one has to pretrain."""
    size = at_scale(_SIZES, scale)
    parts = decoded(folder, size.pixels)
    number = torch.full((CLASSES,), -1)
    number[list(_NEW)] = torch.arange(len(_NEW))

    of_old = number[parts["train_label"]] < 0
    old_images, old_labels = parts["train_image"][of_old], parts["train_label"][of_old]
    scaled = scaling(old_images, device)
    body = _body(size, old_images, old_labels, scaled, device)

    images = torch.cat([parts["train_image"], parts["test_image"]])
    labels = number[torch.cat([parts["train_label"], parts["test_label"]])]
    of_new = (labels >= 0).nonzero()[:, 0]
    order = of_new[torch.randperm(len(of_new), generator=generator(0, "few images split"))]
    rows = torch.split(order, [size.images, _PROBE_IMAGES, len(order) - size.images - _PROBE_IMAGES])
    train, probe, held_out = ((images[part].to(device), labels[part].to(device)) for part in rows)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            model = ResNet(size.channels, size.stem_stride, len(_NEW))
        model.load_state_dict({**model.state_dict(), **body})
        return on_device(model, device)

    return Workload(
        name="few-images",
        steps=size.steps,
        build=build,
        loss=loss,
        batches=lambda seed: augmented(
            *train,
            size=size.batch,
            shift=size.shift,
            scaled=scaled,
            draw=generator(seed, "few images batches"),
        ),
        probe=lambda seed: shuffled(
            (scaled(probe[0]), probe[1]), _PROBE_BATCH, generator(seed, "few images probe")
        ),
        held_out=in_parts((scaled(held_out[0]), held_out[1]), 500),
    )


def _body(size: _Size, images: Tensor, labels: Tensor, scaled: Scaled, device: str) -> dict[str, Tensor]:
    """Weights and statistics of all but the head, pretrained on these images by the first who asks."""
    kind = torch.device(device).type
    content = crc32(images.numpy().tobytes(), crc32(repr((size, _NEW, _PRETRAINING_LR)).encode()))
    return kept(
        f"few_images_{content:08x}_torch{torch.__version__}_{kind}",
        lambda: _pretrained(size, images.to(device), labels.to(device), scaled, device),
    )


def _pretrained(
    size: _Size, images: Tensor, labels: Tensor, scaled: Scaled, device: str
) -> dict[str, Tensor]:
    with seeded(0):
        model = on_device(ResNet(size.channels, size.stem_stride), device)
    optimizer = AdamW(model.parameters(), lr=_PRETRAINING_LR)
    scheduler = OneCycleLR(optimizer, _PRETRAINING_LR, size.pretraining_steps, cycle_momentum=False)
    batches = augmented(
        images,
        labels,
        size=size.pretraining_batch,
        shift=size.shift,
        scaled=scaled,
        draw=generator(0, "few images pretraining"),
    )
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False):
        for batch in islice(batches, size.pretraining_steps):
            optimizer.zero_grad()
            loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
    return {
        name: value.contiguous() for name, value in model.state_dict().items() if not name.startswith("head.")
    }
