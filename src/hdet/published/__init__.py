"""HDET as published (arXiv 2604.24708), and where each equation is.

=============  =====================================================  ==================================
equation       what                                                   where
=============  =====================================================  ==================================
1              levels and multipliers ρ of the replicas               ``loop/levels``: ``levels``
2              fan-out: each replica steps at η·ρ                     ``loop/fan_out``: ``FanOut``
3              converge: the weights become their mean                ``loop/converge``: ``Converge``
4–7            vote: a softmax of the losses moves the learning rate  ``softmax``: ``SoftmaxController``
8              decay, as printed                                      ``softmax``: ``literal_decay``
8              decay, corrected                                       ``softmax``: ``geometric_decay``
9              reassign: a fresh permutation in every round           ``loop/levels``: ``permuted``
10             warm noisy start                                       ``warm_start``: ``warm_start_``
Algorithm 1    the loop                                               ``loop/cycle``: ``Cycle``
Algorithm 1    its first decision, as printed                         ``vote``: ``PrintedVote``
=============  =====================================================  ==================================

The door is ``one_cycle``: ``OneCycleAutoLR``, with the authors' arguments; its ``paper`` has the paper's
values, and its rules as printed. It builds a ``Cycle`` with one policy, ``vote``: ``Vote``, which applies
``softmax`` to each hyperparameter. This room imports the loop, and what the loop imports.
"""
