"""Training without a learning rate: the rule in ``rule`` (pure), windows and their means, the best
weights seen, and the interfaces ``AutoLR``, ``BestMean``, ``Guard`` and ``find``.
"""
