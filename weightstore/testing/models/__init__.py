"""Exhaustive small-scope models of commit and collection, with what each safety step is for.

`python -m weightstore.testing.models` explores every model with the product's own rules
(nothing may break), then every mutation, each of which leaves out one safety step (something
must break), and prints state counts and the shortest counterexamples.
"""
