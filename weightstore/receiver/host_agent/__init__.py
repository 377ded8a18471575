"""The host agent: one process a machine that reads and decodes packs for all ranks there."""
