"""Records, manifests and packs as bytes, and the rules of the log; pure."""
