"""A transaction on the owner."""
