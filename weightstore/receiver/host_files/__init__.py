"""Checkpoint directories that are kept at a version in place, for engines that reload files."""
