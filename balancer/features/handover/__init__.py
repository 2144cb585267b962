"""`directory hand-over`."""
