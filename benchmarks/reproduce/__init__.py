"""``reproduce``: the experiments of the paper. ``command`` is the entry, ``plan`` which runs,
``tasks`` on what, ``runs`` how one is run, ``crash`` and ``order`` the verdicts, and the rest what is
shown of them."""
