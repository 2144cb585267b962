"""`table convert|unconvert`."""
