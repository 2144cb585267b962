"""How the map is kept as pages, deltas and commits, the same for every backend. Called by the backends, and by the
client for its first view.

`backend` (versions, conflicts, exactly once) → `commit` (what one writes) → `pages`, `page_codec` (a million tablets in
pages of bytes) and `codec` (everything else as JSON; finished things are decoded late, `delta`). `follower` reads what
has changed. A process's first view comes from `host_cache` if there is one, otherwise from the backend's loader.
"""
