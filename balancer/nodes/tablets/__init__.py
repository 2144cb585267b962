"""Makes, fills, compares, fences, retires partitions."""
