"""What a saved state holds, as the engine hands it to its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdet.loop.state import Owner, digest
from hdet.replicas import SoloReplica


def inside(saved: Mapping[str, Any]) -> Any:
    """The tree that was packed into a state."""
    (said,) = saved["state"]
    owner = Owner(said["class"], {}, SoloReplica(), ())
    return owner.unpack({**saved, "state": (sealed({**said, "part": [0, 1], "bound": True}),)})[0]


def there_and_back(state: Mapping[str, Any]) -> Any:
    """The state of a part alone, as it comes out of a file."""
    owner = Owner("Part", {}, SoloReplica(), ())
    return owner.unpack(owner.pack(state))[0]


def forged(saved: Mapping[str, Any]) -> Any:
    """The values in a state, to be changed; :func:`seal` then makes it a whole one again."""
    return saved["state"][0]["values"]


def seal(saved: Mapping[str, Any]) -> None:
    """As if it had been saved so."""
    saved["state"][0].update(sealed(saved["state"][0]))


def sealed(said: Mapping[str, Any]) -> dict[str, Any]:
    """With the checksum of what it holds."""
    known = {name: value for name, value in said.items() if name not in ("checksum", "tensors")}
    return {**said, "checksum": digest(known)}
