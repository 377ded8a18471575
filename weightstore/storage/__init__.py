"""The only layer that touches disks and object stores."""
