"""Backend."""
