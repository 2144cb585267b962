"""Split, merge, expire."""
