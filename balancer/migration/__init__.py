"""One tablet from one owner to the next, and what else changes partitions under an argument: move, move of a reference
table's home, split and merge, expiry. Called by the daemon's leader.

`begin` (an action becomes a journaled record) → `pool` (gives it a thread) → `runner` (drives it from state to state;
also a predecessor's half-done work) → `machine` (what follows what, and why nothing is lost) → `steps` (whose work a
state is): `copy`, `switch`, `finish`, `reshard`, `expire`, `reference_home` → `nodes/tablets/*` has the statements.
`retries` judges errors; migrations of one leader pass `concurrency` one by one before they switch.

A copy: `copy` (workers; what is missing, by the target's notes; how fast) → `replay` (rows of changed keys, indexes,
all rows compared) → `stream` (the slot, the last replay at its snapshot, what follows). Why that order: `machine`.
"""
