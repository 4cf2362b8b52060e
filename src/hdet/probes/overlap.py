"""Whether the probe's samples are trained on, found from the model's inputs: hdet never sees the data loader.

A hook on the model takes a checksum of every sample in the first forward passes of training and of the probe,
and syncs compare them. It compares inputs bit for bit: samples that augmentation, noise or random offsets
change in every pass are not found, nor inputs that do not pass through a module's call (CUDA graphs, a
compiled model that is not the probe's own). Where it cannot compare, it does not warn.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hdet.probes.batch_contents import tensors_of
from hdet.probes.probe import Probe

__all__ = ["WIDTH", "Overlap", "checksums", "compare"]

#: How many forward passes, samples of a pass and values of a sample are looked at.
_FORWARDS, _SAMPLES, _VALUES = 64, 1024, 1024
#: Samples of fewer values coincide by nature: an id, a scalar.
_LEAST_VALUES = 4
#: Warn of this many samples or more, if they are so many times as many as coincidence explains.
_LEAST, _BEYOND_CHANCE = 2, 4
#: Training may call one of these, and the loss function the module in it.
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
#: The length of :meth:`Overlap.row`.
WIDTH = 6
#: Integers below this are floats without rounding.
_EXACT = 2**52


class Overlap:
    """Watches the inputs of a probe's model. It costs a few small kernels in each of the first forward
    passes, waits for nothing and reads no random state."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._handle: RemovableHandle | None = None
        self._trained: list[Tensor] = []
        self._probed: list[Tensor] = []
        self._stopped = False
        #: Whether all ranks are done.
        self.settled = False
        self._compared_ranks = False

    def watch(self) -> None:
        """Begin; call after the first step, so that what wants a model without hooks (CUDA graphs,
        TorchScript) has had it, and a compiled one is not compiled again."""
        if self._handle is None and not self._stopped:
            model = self._probe.model
            while type(model).__name__ in _WRAPPERS and isinstance(model.module, nn.Module):
                model = model.module
            self._handle = model.register_forward_pre_hook(_Hook(self), with_kwargs=True)
            weakref.finalize(self, self._handle.remove)

    def prepare(self) -> None:
        """Call before the probe measures. If no training was seen by then, no hook sees it."""
        if not self._trained:
            self._stop()

    def settle(self) -> None:
        """Stop for good."""
        self.settled = True
        self._stop()
        self._trained, self._probed = [], []

    def row(self) -> list[float]:
        """What this rank has seen, :data:`WIDTH` numbers to gather; none once settled. Waits for the
        device."""
        if self.settled:
            return []
        if len(self._trained) >= _FORWARDS and self._probed:
            self._stop()
        found, first = (0.0, 0.0, 0.0, 0.0), 0
        with suppress(Exception):  # tensors of a transform that has ended, a device without an operation
            found = compare(self._trained, self._probed)
            first = int(self._trained[0].sum()) % _EXACT if self._trained else 0
        return [*found, float(not self._stopped), float(first)]

    def found(self, rows: Sequence[Sequence[float]]) -> str:
        """The warning that follows from the rows of all ranks, once, or ""."""
        if self.settled:
            return ""
        overlapping, probed, trained, chance, watching, _ = map(math.fsum, zip(*rows, strict=True))
        significant = overlapping >= _LEAST and overlapping > _BEYOND_CHANCE * chance
        if significant or not watching:
            self.settle()
        if not significant:
            return ""
        return (
            f"{overlapping:,.0f} of {probed:,.0f} probe samples were trained on (among the first "
            f"{trained:,.0f} training samples): the learning rate and the choice of weights are fitted to "
            "data that the model memorises, and the held-out loss is too low; take batches out of the "
            "training data with hdet.Probe.set_aside, or give Probe a held-out set"
        )

    def same_batches(self, rows: Sequence[Sequence[float]]) -> str:
        """The warning that all ranks were given the same first batch to train on, once, or ""."""
        first = {row[-1] for row in rows}
        if self._compared_ranks or len(rows) == 1 or 0.0 in first:
            return ""
        self._compared_ranks = True
        if len(first) > 1:
            return ""
        return (
            f"all {len(rows)} ranks train on the same batches, so that they are worth no more than one: give "
            "each its own share of the data, by a DistributedSampler or a generator seeded with its rank"
        )

    def see(self, module: nn.Module, inputs: object) -> None:
        """The model is about to be called with these."""
        training = module.training and torch.is_grad_enabled()
        seen = self._probed if self._probe.measuring else self._trained
        if (self._probe.measuring or training) and len(seen) < _FORWARDS:
            try:
                sums = checksums(inputs)
            except Exception:  # an unusual tensor must not stop training
                self._stop()
            else:
                seen += [] if sums is None else [sums]

    def _stop(self) -> None:
        self._stopped = True
        if self._handle is not None:
            self._handle.remove()


class _Hook:
    """Calls :meth:`Overlap.see` without keeping it alive; in a copy of the model it does nothing."""

    def __init__(self, overlap: Overlap | None = None) -> None:
        self._overlap = None if overlap is None else weakref.ref(overlap)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():  # nothing of this may be compiled
            return
        overlap = None if self._overlap is None else self._overlap()
        if overlap is not None and not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            overlap.see(module, (args, kwargs))

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def checksums(inputs: object) -> Tensor | None:
    """A number for each sample: equal samples have equal numbers, in any batch and on any device.

    All tensors count that are as long as the first one; of large samples, values at regular distances. Sums
    of integers do not round. None if there is nothing to compare, or a CUDA graph is being captured.
    """
    tensors = tensors_of(inputs)
    tensors = [tensor for tensor in tensors if len(tensor) == len(tensors[0])]
    if not tensors or not len(tensors[0]) or any(type(t) not in (Tensor, nn.Parameter) for t in tensors):
        return None
    if any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing():
        return None
    # Where most of it is: copying the rest there might wait for the device.
    device, samples = max(tensors, key=Tensor.numel).device, len(tensors[0])
    tensors = [tensor for tensor in tensors if tensor.device == device and tensor.numel()]
    if sum(tensor.numel() for tensor in tensors) < _LEAST_VALUES * samples:
        return None
    total: Tensor | None = None
    with torch.no_grad():
        for k, tensor in enumerate(tensors):
            # A call that does nothing takes as long as one that does: a slice of all, a reshape to what is.
            values = _integers(tensor if samples <= _SAMPLES else tensor[:_SAMPLES])
            values = values if values.dim() == 2 else values.reshape(len(values), -1)
            if values.shape[1] > _VALUES:
                values = values[:, :: math.ceil(values.shape[1] / _VALUES)]
            sums = _scattered(values).mul_(_weights(k, values.shape[1], device)).sum(1)
            total = sums if total is None else total + sums
    return total


@lru_cache(maxsize=16)
def _weights(tensor: int, count: int, device: torch.device) -> Tensor:
    """Odd numbers without a pattern, others for each tensor of a sample."""
    positions = torch.arange(1, count + 1, device=device) + tensor * 2 * _VALUES
    return _scattered(_scattered(_scattered(positions))) | 1


def _integers(tensor: Tensor) -> Tensor:
    """The bits of a floating tensor; zero stays zero."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return tensor
    of_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(of_size[tensor.element_size()])


def _scattered(values: Tensor) -> Tensor:
    """Integers far from those of similar ones; zero stays, so that padding with zeros changes no sum."""
    values = values.to(torch.int64) * -7046029254386353131  # the golden ratio, of 2⁶⁴
    return values.bitwise_xor_(values >> 32)


def compare(trained: Iterable[Tensor], probed: Iterable[Tensor]) -> tuple[float, float, float, float]:
    """From checksums, a tensor for each batch: how many probe samples were trained on, how many different
    ones the probe and training had, and how many would be in both by coincidence.

    The last follows from how often samples coincide within the probe and within training.
    """
    ours, theirs = _Samples(probed), _Samples(trained)
    # One input for everything, such as a graph whose nodes the loss selects, is no overlap.
    one_input = ours.different == theirs.different == theirs.of_first_batch
    both = 0 if one_input else len(ours.different & theirs.different)
    # Three more than were seen (the rule of three): none among few pairs does not mean never.
    likely = (3 + ours.repeats + theirs.repeats) / max((ours.count**2 + theirs.count**2) / 2, 1)
    probed_count, trained_count = len(ours.different), len(theirs.different)
    return both, probed_count, trained_count, probed_count * trained_count * likely


class _Samples:
    """The different samples of all batches, and how many samples of the first pass coincide with others.

    A batch of which more than half was there before belongs to a second pass over the data.
    """

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.different: set[int] = set()
        self.of_first_batch: set[int] = set()
        self.repeats = self.count = 0
        for batch in batches:
            samples = batch.tolist()
            new = set(samples) - self.different
            if 2 * len(new) >= len(samples):
                self.count += len(samples)
                self.repeats += len(samples) - len(new)
            self.different |= new
            self.of_first_batch = self.of_first_batch or new
