"""A whole fleet on one store and on virtual time, with faults drawn from a seed.

`python -m weightstore.testing.simulation --seed N` replays one run and tells what happened.
"""
