"""What the paper claims, settled where it can be told: edge, Eq. 8, T, reassignment, noise, averaging.

Many runs train at once, as rows of one tensor on one device (:mod:`benchmarks.paper.fleet`); what is compared
is in :mod:`benchmarks.paper.studies`, by PROTOCOL.md.
"""
