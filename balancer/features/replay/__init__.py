"""Record, replay, simulate."""
