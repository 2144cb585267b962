"""Reference tables."""
