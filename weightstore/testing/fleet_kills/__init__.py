"""A fleet of real processes under kills.

A trainer, two receivers, an engine of two ranks, a host agent and a directory that is followed,
each a process of its own, forked from a warm one without torch. Any of them is killed at any
point of its work, and again while it starts; `python -m weightstore.testing.fleet_kills` prints
what came of it.
"""
