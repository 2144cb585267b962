"""The whole plan."""
