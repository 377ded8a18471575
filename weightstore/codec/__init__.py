"""The change of one piece as bytes, and the digest of a state; pure."""
