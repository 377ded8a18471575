"""An engine of several ranks: one leader, and a receiver in the process of each rank."""
