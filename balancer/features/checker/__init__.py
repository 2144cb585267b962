"""The consistency checker: what it looks at, kind by kind, and the loop that goes over it. Only reads.

`duty` (for the leader, within the bundle's `[checks]`: when, and how much) or `command` (`balancer verify`, for a
person) → `loop` → `policies/checking` (what is next, what a result means) → `map`, `rows`, `numbers`, `messages` (both
ends, and in which order), `invariants` (the application's, at a consistent cut) → `evidence` (why a move causes no
false alarm). Findings are kept in `book`.
"""
