"""What is asked of packages that are not there."""

from __future__ import annotations

import pytest

from benchmarks.autotune.arena import needed


def test_a_missing_package_is_named_with_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match="needs no_such_package: pip install -r benchmarks"):
        needed("no_such_package.tune")
