"""Who explores what: the multipliers of Eq. 1 and their assignment to replicas (Eq. 9).

Everything here is a pure function of integers and strings, so every rank computes the same answer
without communicating and no random number generator, private or global, is involved.
"""

from __future__ import annotations

import hashlib

__all__ = ["assignment", "multipliers", "permutation"]


def multipliers(size: int, spread: float) -> tuple[float, ...]:
    """The symmetric ladder ρ_0 < … < ρ_{N−1} around 1 (Eq. 1).

    ``δ = max((N−1)/2, ½)`` and ``ρ_r = 1 + α·(r − (N−1)/2)/δ``: the mean is 1, the ends are ``1 ± α``,
    and a single replica gets exactly 1.

    >>> multipliers(3, 0.5)
    (0.5, 1.0, 1.5)
    >>> multipliers(1, 0.5)
    (1.0,)
    """
    if size < 1:
        raise ValueError(f"multipliers: size must be at least 1, got {size!r}")
    if not 0 <= spread < 1:
        raise ValueError(f"multipliers: spread must be in [0, 1), got {spread!r}")
    centre = (size - 1) / 2
    delta = max(centre, 0.5)
    return tuple(1.0 + spread * (r - centre) / delta for r in range(size))


def permutation(size: int, *, seed: int, round: int, name: str) -> tuple[int, ...]:
    """A uniformly random permutation of ``0…size−1``, fixed by ``(seed, round, name)``.

    Ranks are sorted by a hash of their own key. That is a true permutation, it is independent between
    names and between rounds, and it is the same on every machine and every version of Python.
    """

    def key(rank: int) -> bytes:
        return hashlib.sha256(f"{seed}\0{round}\0{name}\0{rank}".encode()).digest()

    return tuple(sorted(range(size), key=key))


def assignment(size: int, spread: float, *, seed: int, round: int, name: str) -> tuple[float, ...]:
    """The multiplier of every replica in one round, ``ρ_π(r)``.

    Round 0 is Eq. 1 as it stands (replica r explores ρ_r, line 3 of Algorithm 1); every later round
    draws a fresh permutation for each hyperparameter (Eq. 9).
    """
    ladder = multipliers(size, spread)
    if round == 0:
        return ladder
    return tuple(ladder[i] for i in permutation(size, seed=seed, round=round, name=name))
