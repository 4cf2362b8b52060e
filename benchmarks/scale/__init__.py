"""What a step, a converge and their memory cost for models and machines that are not here.

A cost model, what of it can be checked on the machine at hand, and what it says of all others.
"""
