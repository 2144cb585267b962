"""How the map is kept as pages, deltas, commits; the same for every backend."""
