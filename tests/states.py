"""What a saved state holds, as the engine hands it to its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdet.engine.envelope import digest
from hdet.weights.parcel import Parcel


def inside(saved: Mapping[str, Any]) -> Any:
    """The tree that was put into a state."""
    return Parcel(saved["values"][0]["state"], saved["tensors"]).opened()[0]


def there_and_back(state: Mapping[str, Any]) -> Any:
    """The state of a part alone, as it comes out of a file."""
    parcel = Parcel.of(state)
    return Parcel(parcel.values, parcel.tensors).opened()[0]


def forged(saved: Mapping[str, Any]) -> Any:
    """The engine's values in a state, to be changed; :func:`seal` then makes it a whole one again."""
    return saved["values"][0]["state"]


def seal(saved: Mapping[str, Any]) -> None:
    """As if it had been saved so."""
    values = saved["values"][0]
    own = {name: value for name, value in values.items() if name not in ("digest", "tensors")}
    values["digest"] = digest(own)
