"""The reading user of the history: bring a version into live tensors."""
