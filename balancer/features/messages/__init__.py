"""Exactly-once messages, daemon's side."""
