"""The `weightstore` command. `main` is its entry point."""

from weightstore.cli.app import main

__all__ = ["main"]
