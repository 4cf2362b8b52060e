"""HDET as published (arXiv 2604.24708): Eq. 4–8 in ``softmax``, the policy that applies them in ``vote``, the
warm noisy start (Eq. 10) in ``warm_start``, and the authors' interface in ``one_cycle``.

What all doors share stands in ``hdet/loop``: levels and reassignment (Eq. 1, 9) in ``levels``, fan-out
(Eq. 2) in ``fan_out``, converge (Eq. 3) in ``converge``.
"""
