"""``hyperparameters``: how much of a wrong start the replicas make good. ``command`` is the
entry, ``plan`` which runs, ``tasks`` on what, ``runs`` how one is run, ``analysis`` what follows from
them."""
