"""Any scalar hyperparameter, found by replicas that differ: the rule in ``regression`` (pure), the policies
that apply it, and two interfaces, ``Ensemble`` and ``AutoTune``.
"""
