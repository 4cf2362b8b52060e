"""``lightbench``: how many of LightBench's problems one run of AutoLR solves. ``command`` is the
entry, ``published`` what AdamW was reported to need, ``problems`` takes one out of the package, ``runs``
trains on it in a process of its own; the protocol is benchmarks/lightbench/PROTOCOL.md."""
