"""``replicas``: what more replicas buy. ``command`` is the entry, ``runs`` how one is run."""
