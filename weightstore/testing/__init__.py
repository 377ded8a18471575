"""Contract tests, fault injection and models, for this project and for others."""
