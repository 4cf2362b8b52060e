"""The split of the zoo: by family, by a hash that nobody chose."""

import subprocess
from collections import Counter

import pytest

from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.families import FAMILIES, PARTS, SALT, part_of
from tests import ROOT

NAMES = [family.name for family in FAMILIES]
#: Measured elsewhere, so that nothing may be fitted to them.
KEPT_OUT = ("trec", "agnews", "pros_cons", "reaction_yield")


def test_half_is_for_fitting_and_a_quarter_each_for_choosing_and_testing():
    for salt in (SALT, "another"):
        sizes = Counter(part_of(name, salt) for name in NAMES)
        assert set(sizes) == set(PARTS)
        assert abs(sizes["fit"] - len(NAMES) / 2) <= 1
        assert abs(sizes["dev"] - len(NAMES) / 4) <= 1
        assert abs(sizes["test"] - len(NAMES) / 4) <= 1


def test_another_salt_gives_another_split():
    assert any(part_of(name) != part_of(name, "another") for name in NAMES)


def test_the_salt_is_the_commit_that_added_the_list():
    assert len(SALT) == 40
    listed = subprocess.run(
        ["git", "show", f"{SALT}:benchmarks/zoo/families.py"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("this checkout does not hold the commit that added the list")
    assert 'SALT = ""' in listed.stdout
    assert [name for name in NAMES if f'"{name}"' not in listed.stdout] == []


def test_there_are_as_many_as_were_promised():
    assert {task.family for task in TASKS.values()} == set(NAMES)
    assert len(TASKS) >= 48
    assert len(set(NAMES)) == len(NAMES) >= 20
    assert len(cells()) == sum(len(cells(part)) for part in PARTS) >= 110
    assert all({"adamw", "sgd"} <= set(task.optimizers) for task in TASKS.values())


def test_what_others_are_measured_on_stays_out():
    assert not [
        file for family in FAMILIES for file in family.files if any(name in file for name in KEPT_OUT)
    ]


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match="family must be one of letter-shapes"):
        part_of("nobody")
