"""A whole store against a dictionary, by random steps, faults and damage.

`store_model.StoreModel` holds what should be there; each `..._rules` module adds steps to it,
and a test puts them together over a `places.Place`.
"""
