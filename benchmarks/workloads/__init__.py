"""Small real tasks: each a model, its data, its loss, behind :class:`benchmarks.workloads.base.Workload`.

``WORKLOADS[name](scale, device, folder)`` makes one; data is read, and packages beyond torch are imported,
only then.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.workloads import (
    bikes,
    charlm,
    diffusion,
    digits,
    feedstream,
    few_images,
    images,
    newsfeed,
    quadratic,
    ratings,
    sentences,
    tuned,
    vae,
    wordlm,
)
from benchmarks.workloads.base import Batch, Workload, data_file

__all__ = ["WORKLOADS", "Batch", "Workload", "data_file"]

WORKLOADS: dict[str, Callable[..., Workload]] = {
    "digits-mlp": digits.make_mlp,
    "digits-cnn": digits.make_cnn,
    "quadratic": quadratic.make,
    "charlm": charlm.make,
    "images": images.make,
    "newsfeed": newsfeed.make,
    "newsfeed-stream": feedstream.make,
    "sentences": sentences.make,
    "bikes": bikes.make,
    "ratings": ratings.make,
    "wordlm": wordlm.make,
    "charlm-long": charlm.make_long,
    "few-images": few_images.make,
    "diffusion": diffusion.make,
    "vae": vae.make,
    "charlm-tuned": tuned.make,
    "charlm-lora": tuned.make_lora,
}
