"""What a saved state holds, as the engine hands it to its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdet.weights.parcel import Parcel


def inside(saved: Mapping[str, Any]) -> Any:
    """The tree that was put into a state."""
    return Parcel(saved["values"][0]["state"], saved["tensors"]).opened()[0]


def there_and_back(state: Mapping[str, Any]) -> Any:
    """The state of a part alone, as it comes out of a file."""
    parcel = Parcel.of(state)
    return Parcel(parcel.values, parcel.tensors).opened()[0]
