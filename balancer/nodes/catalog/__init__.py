"""Reads what a table is; what forbids us to touch it."""
