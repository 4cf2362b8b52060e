"""Which buffers are judged."""

from __future__ import annotations

import math

import torch

from hdet.loop.given import GivenBuffers


def test_what_was_given_so_is_not_judged_and_what_became_so_is() -> None:
    mask, mean, count = torch.full((3, 3), -math.inf), torch.zeros(3), torch.tensor(1)
    given = GivenBuffers()
    assert given.judged([mask, mean, count]) == [mean, count]
    mean[1] = math.nan
    assert given.judged([mask, mean, count]) == [mean, count]


def test_a_mask_that_grows_is_seen_anew() -> None:
    given = GivenBuffers()
    empty = torch.zeros(0)
    assert given.judged([empty]) == [empty]
    assert given.judged([torch.full((4, 4), -math.inf)]) == []


def test_eight_bits() -> None:
    few = torch.zeros(3, dtype=torch.float8_e4m3fn)
    assert GivenBuffers().judged([few]) == [few]
