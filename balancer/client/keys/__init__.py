"""Where a key is, fast."""
