"""How commands print, wait, find the directory, submit (below the features)."""
