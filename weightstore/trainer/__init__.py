"""The writing user of the history: detect what changed, publish it, move the baseline."""
