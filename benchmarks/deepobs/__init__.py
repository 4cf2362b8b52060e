"""``deepobs``: AutoLR on DeepOBS's noisy quadratic, beside its published baselines. ``command`` is
the entry, ``problem`` the task, rebuilt from its definition; the protocol is docs/protocols/yardsticks.md."""
