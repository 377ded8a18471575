"""How stores of older formats become stores of the newest one.

A step is a module `from_N_to_M`. Steps, and everything here, are frozen once they were
released: they import nothing of the package, which goes on changing, so that a store of any
format is read by what was known when that format was.

In an installed package this folder is `weightstore/_migrations`.
"""
