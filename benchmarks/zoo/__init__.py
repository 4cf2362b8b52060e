"""A zoo of small tasks of many kinds, on which a rule for learning rates is fitted, chosen and tested.

``families.py`` lists where tasks come from and which part each belongs to, ``catalogue.py`` every task.
"""
