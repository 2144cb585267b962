"""`table import`."""
