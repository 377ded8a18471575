"""`python -m weightstore` is the command `weightstore`."""

from weightstore.cli import main

main()
