"""Whether the probe's samples are trained on: seen by the model's own inputs, since nobody shows us the
training data.

A hook on the model takes a checksum of every sample of the first forward passes, and of the samples that the
probe looks at. It compares inputs, bit for bit: what augmentation, noise or windows at random offsets make
different at every pass is not found, nor what does not come through a module's call (compiled models that are
not the probe's own, CUDA graphs). Where this cannot look it says nothing, and never stands in the way.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hdet.probes.probe import Probe

__all__ = ["WIDTH", "Evidence", "Overlap", "checksums", "evidence"]

#: So many forward passes of training are looked at; of each so many samples, of each so many values.
_FORWARDS, _SAMPLES, _VALUES = 64, 1024, 1024
#: Samples of fewer values coincide by nature: an id, a scalar.
_LEAST_VALUES = 4
#: Overlap is told if it is so many times what coincidence would explain, and that of two samples at least.
_BEYOND_CHANCE, _LEAST = 4, 2
#: Wrappers around what is trained; a loss function may call either.
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one rank has seen.

    Args:
        overlapping: samples of the probe that were trained on; those that it holds several times aside.
        probed: different samples that the probe looked at.
        trained: different samples that were trained on.
        forwards: in so many forward passes.
        chance: so many would overlap by coincidence, where samples are alike by nature.
        watching: whether there is more to come.
    """

    overlapping: float = 0.0
    probed: float = 0.0
    trained: float = 0.0
    forwards: float = 0.0
    chance: float = 0.0
    watching: float = 1.0

    def row(self) -> list[float]:
        """To be gathered."""
        return [self.overlapping, self.probed, self.trained, self.forwards, self.chance, self.watching]

    @classmethod
    def of_all(cls, rows: Sequence[Sequence[float]]) -> Evidence:
        """From the rows of all ranks."""
        overlapping, probed, trained, forwards, chance, watching = zip(*rows, strict=True)
        return cls(
            math.fsum(overlapping),
            math.fsum(probed),
            math.fsum(trained),
            max(forwards),
            math.fsum(chance),
            max(watching),
        )

    @property
    def convinces(self) -> bool:
        """Whether coincidence does not explain it."""
        return self.overlapping >= _LEAST and self.overlapping > _BEYOND_CHANCE * self.chance


#: Of a row.
WIDTH = len(Evidence().row())


class Overlap:
    """Looks at what goes through a probe's model, for its first forward passes.

    It costs a few small kernels for each of those, waits for nothing and reads no random state.

    Args:
        probe: whose samples should not be trained on.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._handle: RemovableHandle | None = None
        self._trained: list[Tensor] = []
        self._probed: list[Tensor] = []
        #: How likely two samples are to agree, as a logarithm, by each batch of the probe.
        self._alike: list[Tensor] = []
        self._measurement: int | None = None
        self._over = False
        #: Whether all ranks are done.
        self.settled = False

    def watch(self) -> None:
        """Begin; called when the first step has run through the model, so that whoever wants a model without
        hooks (CUDA graphs, TorchScript) has had it, and a compiled one is not compiled anew."""
        if self._handle is not None or self._over:
            return
        look = _Look(self)
        self._handle = _watched(self._probe.model).register_forward_pre_hook(look, with_kwargs=True)
        weakref.finalize(self, self._handle.remove)

    def prepare(self) -> None:
        """The probe is about to measure. If no training was seen by then, the model is called in a way that
        no hook sees."""
        if not self._trained:
            self._stop()

    def settle(self) -> None:
        """Nothing more is to be said."""
        self.settled = True
        self._stop()
        self._trained, self._probed, self._alike = [], [], []

    def row(self) -> list[float]:
        """What this rank has seen, of one length on all ranks. Waits for the device."""
        if self.settled:
            return []
        found = Evidence()
        with suppress(Exception):  # tensors of a transform that has ended, a device without an operation
            found = evidence(self._trained, self._probed, self._alike)
        return [*found.row()[:-1], float(not self._over)]

    def found(self, rows: Sequence[Sequence[float]]) -> str:
        """What there is to say, by the rows of all ranks; once, or not at all."""
        if self.settled:
            return ""
        seen = Evidence.of_all(rows)
        if seen.convinces or not seen.watching:
            self.settle()
        if not seen.convinces:
            return ""
        return (
            f"{seen.overlapping:,.0f} of {seen.probed:,.0f} samples that the probe looked at were trained on "
            f"(among {seen.trained:,.0f} samples of the first {seen.forwards:.0f} forward passes): the "
            "learning rate and the choice of weights are fitted to data that training learns by heart, and "
            "the held-out loss is too low; take batches out of the training data with hdet.Probe.set_aside, "
            "or give Probe a held-out set"
        )

    def _see(self, module: nn.Module, inputs: object) -> None:
        measurement = self._probe.measurement
        try:
            if measurement is not None:
                self._see_probe(measurement, inputs)
            elif module.training and torch.is_grad_enabled():
                self._see_training(inputs)
        except Exception:  # whatever a tensor may be, training must not fail for it
            self._stop()
        if len(self._trained) >= _FORWARDS and self._measurement not in (None, self._probe.measurement):
            self._stop()

    def _see_probe(self, measurement: int, inputs: object) -> None:
        """The batches of one measurement; those that follow are of the same ones."""
        if self._measurement is None:
            self._measurement = measurement
        if self._measurement == measurement:
            taken = checksums(inputs)
            if taken is not None:
                self._probed.append(taken[0])
                self._alike.append(taken[1])

    def _see_training(self, inputs: object) -> None:
        if len(self._trained) < _FORWARDS:
            taken = checksums(inputs, alike=False)
            if taken is not None:
                self._trained.append(taken[0])

    def _stop(self) -> None:
        self._over = True
        if self._handle is not None:
            self._handle.remove()


class _Look:
    """The hook. It does not keep what looks alive; in a copy of the model, or a pickled one, it is blind."""

    def __init__(self, overlap: Overlap | None = None) -> None:
        self._overlap = None if overlap is None else weakref.ref(overlap)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A compiler is to find nothing here.
        if torch.compiler.is_compiling():
            return
        overlap = None if self._overlap is None else self._overlap()
        traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if overlap is not None and not traced:
            overlap._see(module, (args, kwargs))

    def __reduce__(self) -> tuple[type[_Look], tuple[()]]:
        return _Look, ()


def _watched(model: nn.Module) -> nn.Module:
    while type(model).__name__ in _WRAPPERS and isinstance(model.module, nn.Module):
        model = model.module
    return model


# ---------------------------------------------------------------------- checksums


def checksums(inputs: object, *, alike: bool = True) -> tuple[Tensor, Tensor] | None:
    """A number for each sample, and the logarithm of how likely two of them are to be the same.

    All tensors that have as many samples as the first one count, and of large samples values at regular
    distances. Samples that agree have one checksum, in any batch and on any device: sums of integers know no
    rounding. That likelihood is by the shares of neighbours that agree in each value, as if values were
    independent. None where there is nothing to compare, or where a CUDA graph is being captured.
    """
    tensors = [tensor for tensor in _tensors(inputs) if tensor.dim()]
    tensors = [tensor for tensor in tensors if len(tensor) == len(tensors[0])]
    if not tensors or not len(tensors[0]) or any(type(t) not in (Tensor, nn.Parameter) for t in tensors):
        return None
    if any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing():
        return None
    # Where most of it lies: to fetch the rest from elsewhere might wait for the device.
    device = max(tensors, key=Tensor.numel).device
    tensors = [tensor for tensor in tensors if tensor.device == device]
    if sum(tensor[0].numel() for tensor in tensors) < _LEAST_VALUES:
        return None
    with torch.no_grad():
        total = torch.zeros((), dtype=torch.int64, device=device)
        likely = torch.zeros((), device=device)
        for k, tensor in enumerate(tensors):
            values = _integers(tensor.detach()[:_SAMPLES]).reshape(min(len(tensor), _SAMPLES), -1)
            if not values.shape[1]:
                continue
            values = values[:, :: math.ceil(values.shape[1] / _VALUES)].to(torch.int64)
            total = total + (_scattered(values) * _weights(k, values.shape[1], device)).sum(1)
            if alike:
                # One more than agree, lest none among few be taken for never; a constant says nothing.
                agree = (values[1:] == values[:-1]).sum(0) + 1
                likely = likely + (agree / max(len(values) - 1, 2)).clamp(max=1).log2().sum()
    return total, likely


@lru_cache(maxsize=16)
def _weights(tensor: int, count: int, device: torch.device) -> Tensor:
    """Odd numbers without a pattern, others for each tensor of a sample."""
    places = torch.arange(1, count + 1, device=device) + tensor * 2 * _VALUES
    return _scattered(_scattered(_scattered(places))) | 1


def _tensors(inputs: object) -> list[Tensor]:
    if isinstance(inputs, Tensor):
        return [inputs]
    parts: Iterable[object] = ()
    if isinstance(inputs, Mapping):
        parts = inputs.values()
    elif isinstance(inputs, (list, tuple)):
        parts = inputs
    return [tensor for part in parts for tensor in _tensors(part)]


def _integers(tensor: Tensor) -> Tensor:
    """The bits of a floating tensor; zero stays zero."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return tensor
    of_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(of_size[tensor.element_size()])


def _scattered(values: Tensor) -> Tensor:
    """Integers far from those of similar ones; zero stays, so that what is padded with zeros has one sum."""
    values = values * -7046029254386353131  # the golden ratio, of 2⁶⁴
    return values ^ (values >> 32)


# ---------------------------------------------------------------------- what follows from them


def evidence(trained: Sequence[Tensor], probed: Sequence[Tensor], alike: Sequence[Tensor]) -> Evidence:
    """What checksums of training and probe batches, one tensor for each, say together. Waits for the device.

    How many would overlap by chance is known from pairs within the probe, and within training, in the first
    pass over the data of each.
    """
    if not trained or not probed:
        return Evidence()
    ours, our_twins = _first_pass(probed)
    theirs, their_twins = _first_pass(trained)
    kinds, counts = torch.unique(ours, return_counts=True)
    seen = torch.unique(torch.cat([batch.cpu() for batch in trained]))
    common = int(torch.isin(kinds[counts == 1], seen).sum())
    # One more than there are: there are no fewer pairs within than between, and none seen is not none.
    twins, pairs = 1 + our_twins + their_twins, (len(ours) ** 2 + len(theirs) ** 2) / 2
    likely = 2.0 ** float(torch.stack([a.cpu() for a in alike]).mean())
    # One input for everything, as of a graph whose nodes are trained on or held out by the loss alone.
    if len(seen) <= len(trained[0]) and torch.equal(kinds, seen):
        common = 0
    return Evidence(
        overlapping=common,
        probed=len(kinds),
        trained=len(seen),
        forwards=len(trained),
        chance=len(kinds) * len(seen) * max(likely, twins / pairs),
    )


def _first_pass(batches: Sequence[Tensor]) -> tuple[Tensor, int]:
    """The samples of all batches, and how many of them are there for another time; without batches of which
    more than half was there before, as in a second pass."""
    parts = [batch.cpu() for batch in batches]
    again = torch.split(_seen_before(torch.cat(parts)), [len(part) for part in parts])
    new = [k for k, part in enumerate(again) if 2 * int(part.sum()) <= len(part)]
    return torch.cat([parts[k] for k in new] or parts), sum(int(again[k].sum()) for k in new)


def _seen_before(values: Tensor) -> Tensor:
    """Of each, whether it stands further ahead as well.

    >>> _seen_before(torch.tensor([3, 1, 3, 2, 1])).tolist()
    [False, False, True, False, True]
    """
    order = values.argsort(stable=True)
    ranked = values[order]
    again = torch.zeros(len(values), dtype=torch.bool)
    again[order[1:]] = ranked[1:] == ranked[:-1]
    return again
