"""Makes, fills, compares, fences and retires partitions. Statements only, in the caller's transaction; called by
migrations and by features that change tables.

In the order of a move: `partition` → `references` → `capture`, `copy` → `checksum` → `replication` → `fence` → `closed`
(what a former owner answers) → `leftovers` (what may be removed, and when). `reshard` swaps within one node.
"""
