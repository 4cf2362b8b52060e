"""The cycle that every façade shares (Algorithm 1): fan out, converge, decide, deal anew; and its parts,
one a file. It knows replicas, policies and hyperparameters only by their interfaces, and imports no leaf
and no door."""
