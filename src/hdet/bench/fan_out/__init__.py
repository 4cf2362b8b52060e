"""``hdet bench fan-out``: what replicas add to the search for a learning rate. ``command`` is the entry.

``plan`` says which runs, ``runs`` how one is run; ``counterfactual`` is the search on gradients of one's own,
``noise`` how sure a decision is; ``analysis`` is what follows. Imports anything.
"""
