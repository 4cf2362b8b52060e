"""``fan-out``: what replicas add to the search for a learning rate. ``command`` is the entry.

``plan`` says which runs, ``runs`` how one is run, ``noise`` how sure a decision is;
``analysis`` is what follows. Imports anything.
"""
