"""Where."""
