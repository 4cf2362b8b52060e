"""``autotune``: one run that tunes everything, beside searches that may spend as many samples.

``space`` and ``tasks`` say what is tuned where, ``plan`` which runs there are; ``arms`` does one, and what
the arms are made of is in ``training``, ``ledger``, ``trials``, ``population`` and ``replicas``; PBT and PB2
are in ``twins``, which ``held_against_ray`` compares with Ray's. It imports workloads and rows from the
folders beside it, and Optuna only when an arm that needs it is run.
"""
