"""The saved state of every object: versioned, checksummed, and checked whole before anything is assigned.

A state has two entries. ``state`` is a tuple with one dict in it: class, format, hdet's version,
configuration, all plain values, and one checksum of all that. ``torch.distributed.checkpoint`` takes a tuple
as one value, so it never mixes those of two ranks. ``tensors`` are those that belong to parameters, as
DTensors where these are sharded, so that such a checkpoint can reshard them. Their keys follow from how the
run was set up and not from how far it has come: the state of a fresh object is the template that a checkpoint
fills. Each tensor has a checksum of its own, which is compared only where the tensor is cut as it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hdet
from hdet.replicas import Replicas, is_dtensor, local, ruler, sharded_like

__all__ = ["FORMAT", "Own", "Owner", "Piece", "check_fits", "checksum", "digest", "pieces_of", "plain"]

logger = logging.getLogger("hdet")

#: The format of states. hdet 0.3.0 was the first to write it, and later versions read it.
FORMAT = 5

_TENSOR, _MAY_MISS = "hdet: tensor", "hdet: may miss"
_ABSENT = object()
#: What torch reads back with ``weights_only``.
_PLAIN = (type(None), bool, int, float, str, bytes, Tensor, torch.Size, torch.dtype, torch.device)
#: So many words are summed at a time: what is computed beside them stays small.
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """This rank's part of a tensor that is sharded as a parameter is.

    Args:
        tensor: the part itself, not a copy; or a function that makes room for it, where there is nothing to
            save yet: a checkpoint finds the key, and nobody reads the values.
        of: the parameter.
        may_miss: whether a run can go on without it, where a distributed checkpoint has no room for it.
    """

    tensor: Tensor | Callable[[], Tensor]
    of: Tensor
    may_miss: bool = False


@dataclass(frozen=True, slots=True)
class Own:
    """A tensor of this rank's part of a sharded model that cannot be resharded."""

    tensor: Tensor


def pieces_of(
    tensors: Mapping[int, Tensor] | Mapping[int, Callable[[], Tensor]], parameters: Sequence[Tensor]
) -> dict[int, Piece]:
    """Tensors as large as their parameters, or room for them, by the parameters' numbers."""
    return {i: Piece(tensor, parameters[i]) for i, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that a state belongs to.

    Args:
        kind: its class, which errors begin with.
        configuration: what must be as it was when the state was saved.
        replicas: who trains.
        parameters: what is trained.
    """

    kind: str
    configuration: Mapping[str, Any]
    replicas: Replicas
    parameters: Sequence[Tensor]

    def pack(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """A state of nested dicts and lists. Tensors that are no pieces are the same on all ranks."""
        tensors: dict[str, Tensor] = {}
        sums: dict[str, list[Any]] = {}
        bound = False

        def walk(value: Any, path: tuple[str, ...]) -> Any:
            nonlocal bound
            if isinstance(value, Piece):
                key, spare = "/".join(path), not isinstance(value.tensor, Tensor)
                tensor = value.tensor if isinstance(value.tensor, Tensor) else value.tensor()
                tensors[key] = sharded_like(value.of, tensor)
                bound |= is_dtensor(value.of) and not is_dtensor(tensors[key])
                if spare:
                    return _ABSENT
                sums[key] = checksum(tensor)
                return {_TENSOR: key, _MAY_MISS: value.may_miss}
            if isinstance(value, Own):
                bound = True
                return _on_host(value.tensor)
            if isinstance(value, Mapping):
                every = {key: walk(one, (*path, str(key))) for key, one in value.items()}
                return type(value)({key: one for key, one in every.items() if one is not _ABSENT})  # type: ignore[call-arg]
            if type(value) in (list, tuple):
                return type(value)(walk(one, (*path, str(i))) for i, one in enumerate(value))
            return _on_host(value) if isinstance(value, Tensor) else value

        values = walk(plain(tree), ())
        if tensors:
            tensors["ruler"] = ruler(self.parameters)
        bound |= bool(tensors) and not self.replicas.can_reshard
        header: dict[str, Any] = {
            "class": self.kind,
            "format": FORMAT,
            "hdet": hdet.__version__,
            "configuration": dict(self.configuration),
            "values": values,
            "part": self._part,
            "bound": bound,
            "sums": sums,
        }
        header["checksum"] = digest(header)
        if bound:  # a checkpoint must neither cut them nor give one rank's to another
            header["tensors"], tensors = tensors, {}
        return {"state": (header,), "tensors": tensors}

    def unpack(self, saved: object, free: Collection[str] = ()) -> tuple[Any, Mapping[str, Any]]:
        """The tree that was packed, with this rank's own tensors in it, and the configuration it was saved
        with, in which what is ``free`` may differ. Raises ValueError for a state that is damaged, of another
        class, format or run, or of another rank's part. Changes nothing."""
        header = self._opened(saved)
        tensors: Mapping[str, Tensor] = header.get("tensors", saved["tensors"])  # type: ignore[index,assignment]
        if header["sums"]:
            self._check_part(header, tensors)
        self._check_configuration(header["configuration"], free)
        missing: list[str] = []
        dropped: list[str] = []

        def walk(value: Any) -> Any:
            if isinstance(value, Mapping):
                if (key := value.get(_TENSOR)) is None:
                    every = {name: walk(one) for name, one in value.items()}
                    return type(value)({name: one for name, one in every.items() if one is not _ABSENT})  # type: ignore[call-arg]
                if key in tensors:
                    return local(tensors[key])
                (dropped if value[_MAY_MISS] else missing).append(key)
                return _ABSENT
            return type(value)(map(walk, value)) if type(value) in (list, tuple) else value

        tree = walk(header["values"])
        if missing:
            raise self._error(
                f"the state must hold all its tensors, and {len(missing)} are missing, the first is "
                f"{missing[0]!r}: a distributed checkpoint loads what state_dict() of this object asks for, "
                "and the optimizer had no state, or trained other parameters, when it was called. Load the "
                "optimizer first, then call state_dict() and dcp.load"
            )
        if header["part"] == self._part:
            self._check_sums(header["sums"], tensors)
        if dropped:
            logger.warning(
                "%s.load_state_dict: this object has no room for %d tensors, the optimizer state with which "
                "the run began: a restart from there begins without it",
                self.kind,
                len(dropped),
            )
        return tree, header["configuration"]

    @property
    def _part(self) -> list[int]:
        return [self.replicas.rank_in_replica, self.replicas.ranks_per_replica]

    def _error(self, text: str) -> ValueError:
        return ValueError(f"{self.kind}.load_state_dict: {text}")

    def _opened(self, saved: object) -> dict[str, Any]:
        state = saved.get("state") if isinstance(saved, Mapping) and "tensors" in saved else None
        if not isinstance(state, (list, tuple)) or len(state) != 1 or not isinstance(state[0], Mapping):
            got = f"a dict of {', '.join(map(str, saved))}" if isinstance(saved, Mapping) else repr(saved)
            raise self._error(
                f"the state must be one that {self.kind}.state_dict() made, in hdet 0.3.0 or later, got "
                f"{got[:200]}; load what was saved of this very object"
            )
        found = dict(state[0])
        if isinstance(written := found.get("format"), int) and written != FORMAT:
            raise self._error(
                f"the state must be of format {FORMAT}, which hdet {hdet.__version__} reads, got one written "
                f"by hdet {found.get('hdet')}, format {written}: use that version"
            )
        known = {name: value for name, value in found.items() if name not in ("checksum", "tensors")}
        if digest(known) != found.get("checksum"):
            raise self._error(
                "the state is damaged: its checksum is not that of what it holds. Something in it was "
                "changed after state_dict(), in the file or by hand; go back to an earlier checkpoint"
            )
        if found["class"] != self.kind:
            raise self._error(
                f"the state must be {self.kind}'s, got {found['class']}'s; load what was saved of this very "
                "object"
            )
        return found

    def _check_configuration(self, saved: Mapping[str, Any], free: Collection[str]) -> None:
        for name, value in self.configuration.items():
            was = saved.get(name, value)
            if name in free or value == was:
                continue
            if name == "parameter names" and sorted(value) != sorted(was):
                continue  # renamed; in another order, layers would be written into each other's places
            if isinstance(value, list) and len(value) == len(was):
                first = next(i for i, pair in enumerate(zip(value, was, strict=True)) if pair[0] != pair[1])
                name, value, was = f"{name} (number {first})", value[first], was[first]
            raise self._error(
                f"{name} must be as it was when the state was saved, {was}, got {value}; set the run up as "
                "it was then, or begin a new one"
            )

    def _check_part(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """A rank loads its own part of a sharded model: from a file of its own, or resharded."""
        part, parts = self._part
        if header["bound"]:
            own = header["part"] == self._part
        elif not self.replicas.can_reshard:
            raise self._error(
                "the state is of a model whose shards know where they lie, and those of this one, part "
                f"{part} of {parts}, do not (FullyShardedDataParallel, ZeroRedundancyOptimizer); shard it "
                "with fully_shard, or begin the search again"
            )
        else:
            marks = local(ruler(self.parameters))
            own = "ruler" in tensors and torch.equal(local(tensors["ruler"]).cpu(), marks)
        if not own:
            raise self._error(
                f"the state must be of this rank's own part of the model, {part} of {parts}, got another's, "
                f"saved as part {header['part'][0]} of {header['part'][1]}; save a file for each rank, and "
                "go on with as many. Flat parameters (FullyShardedDataParallel), the state of a "
                "ZeroRedundancyOptimizer and quantised state cannot be cut otherwise; fully_shard's can, "
                "through torch.distributed.checkpoint"
            )

    def _check_sums(self, sums: Mapping[str, list[Any]], tensors: Mapping[str, Tensor]) -> None:
        for key, (*was_cut, was) in sums.items():
            *cut, total = checksum(tensors[key]) if key in tensors else (*was_cut, was)
            if cut == was_cut and total != was:
                raise self._error(
                    f"the state is damaged: the checksum of {key!r} is {total}, and was {was}; go back to an "
                    "earlier checkpoint. (A distributed one takes each tensor from any rank: replicas must "
                    "be one model, at a sync, when it is saved)"
                )


def check_fits(caller: str, mine: Any, saved: Any, at: str = "") -> None:
    """Raise ValueError unless ``saved`` has every name that this object's own tree has, and tensors of the
    same shapes. What is None, and what is in lists, may be anything."""
    if isinstance(mine, Piece) and isinstance(saved, Tensor):
        own = local(mine.of).shape
        if saved.shape != own:
            raise ValueError(
                f"{caller}.load_state_dict: the state must be of a model of the same shapes: {at[1:]!r} is "
                f"of shape {tuple(saved.shape)}, and the parameter here of {tuple(own)}"
            )
    elif isinstance(mine, Mapping) and saved is not None:
        for name, value in mine.items():
            named = isinstance(name, str)
            if named and (not isinstance(saved, Mapping) or name not in saved):
                raise ValueError(
                    f"{caller}.load_state_dict: the state must hold what this object saves, and lacks "
                    f"{at[1:] + '/' + name!r}; load what was saved of this very object"
                )
            # What is numbered, by parameter, need not be complete, nor need an optimizer's state of it.
            if name in saved and (named or isinstance(value, Piece)):
                check_fits(caller, value, saved[name], f"{at}/{name}")


def plain(value: Any, name: str = "") -> Any:
    """``value`` in types that torch reads back with ``weights_only``: numpy's numbers, enumerations and the
    like become Python's own. What has no such type stays; where there is a ``name``, it raises TypeError."""
    if isinstance(value, Mapping):
        kind: Any = type(value) if type(value) in (dict, OrderedDict, Counter) else dict
        made = kind({plain(key): plain(one, name and f"{name}.{key}") for key, one in value.items()})
        if hasattr(value, "_metadata"):  # of a module's state: the versions of its parts
            made._metadata = value._metadata
        return made
    if type(value) in (list, tuple):
        return type(value)(plain(one, name and f"{name}[{i}]") for i, one in enumerate(value))
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # an enumeration has another str()
    for kind in (int, float, bytes):
        if isinstance(value, kind):
            return kind(value)
    if not isinstance(value, Tensor) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), name)
    if name and not isinstance(value, _PLAIN):
        raise TypeError(
            f"hdet.save: {name} must be made of tensors, numbers, text, lists and dicts, which are read back "
            f"without running code, got {type(value).__name__}; give something with a state_dict of such"
        )
    return value


def digest(tree: Any) -> str:
    """The SHA-256 of plain values and tensors. Lists count as tuples and keys as text, as JSON has them."""
    return hashlib.sha256(repr(_canonical(tree)).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [_canonical(one) for one in value]
    if isinstance(value, Tensor):
        return checksum(value)
    # Of anything else that torch's schedulers keep nobody knows how to read it.
    return value if isinstance(value, _PLAIN) else type(value).__qualname__


@torch.no_grad()
def checksum(tensor: Tensor) -> list[Any]:
    """Type, shape and checksum; of a sharded tensor those of this rank's part. The same on every device."""
    own = local(tensor).detach()
    sums = [_sums(part) for part in _parts(own)]
    return [str(own.dtype), list(own.shape), hashlib.sha256(repr(sums).encode()).hexdigest()[:32]]


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that it is made of: quantised state has several."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _parts(getattr(tensor, name))


def _sums(tensor: Tensor) -> list[int]:
    """Of every million words of eight bytes the weighted sum modulo 2⁶⁴, computed where the tensor lies.

    The weights are odd, so a change within one word is always found. Two words that changed places are always
    found too: they differ in their upper halves, of which the second sum has the difference times that of two
    weights, or in their lower halves, of which the first one has it, and neither product reaches 2⁶⁴.
    """
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    if missing := -raw.numel() % 8:
        raw = torch.cat([raw, raw.new_zeros(missing)])
    if raw.storage_offset() % 8:  # a word must begin at a multiple of its size
        raw = raw.clone()
    words = raw.view(torch.int64)
    odd = torch.arange(1, 2 * min(_AT_ONCE, words.numel()) + 1, 2, device=words.device)
    sums = []
    for part in torch.split(words, _AT_ONCE):
        weights = odd[: part.numel()]
        sums += [(part * weights).sum(), ((part >> 32) * weights).sum()]
    return torch.stack(sums).tolist()


def _on_host(tensor: Tensor) -> Tensor:
    """Values are saved as they are: what lies on a device would come back on the same one, on any rank.

    What is made of several tensors (quantised state) may have no other place to go.
    """
    if tensor.is_cpu or hasattr(tensor, "__tensor_flatten__"):
        return tensor.detach() if type(tensor) is torch.Tensor else tensor
    return tensor.detach().cpu()
