"""``regret``: what AutoLR loses to a tuned sweep, and what its peers lose. ``command`` is the
entry, ``plan`` which runs, ``arms`` how one is run, ``analysis`` what follows from them."""
