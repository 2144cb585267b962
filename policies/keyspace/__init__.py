"""Keys, hashes, leaves (the client ships this room)."""
