"""hdet in other frameworks: a file for each, and one for trackers.

They import the library and the framework they are named after; only their user imports them. A framework that
is missing or too old raises when its file is imported.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

__all__ = ["require"]


def require(package: str, floor: str) -> None:
    """Raise ImportError unless a package is installed in at least the version that is supported.

    >>> require("torch", "2.6")
    >>> require("torch", "999.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ImportError: hdet.integrations: torch must be at least 999.0, got ...; pip install 'torch>=999.0'
    """
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "none"
    if _numbers(found) < _numbers(floor):
        raise ImportError(
            f"hdet.integrations: {package} must be at least {floor}, got {found}; "
            f"pip install '{package}>={floor}'"
        )


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, without a suffix as in 2.13.0+cpu or 3.0rc1.

    >>> _numbers("2.13.0+cpu"), _numbers("3.0rc1"), _numbers("none")
    ((2, 13, 0), (3, 0), ())
    """
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
