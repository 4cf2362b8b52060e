"""The cycle that every door shares (Algorithm 1): fan out, converge, decide, deal anew; and its parts, one a
file. It knows replicas, policies and hyperparameters by their interfaces; it imports no leaf and no door."""
