"""The log and what it commits to: claims, versions, checkout, collection."""
