"""`balancer table convert|unconvert`: a plain table becomes a partitioned one, and back, with a pause of a second.

`command` → `plan` (who has the tables, what is in the way; the dry run ends here) → `run` (the order, and the way back)
→ `prepare` (what is built before) → `statements` (the swap's, with `nodes/definitions/name_transfer`,
`nodes/definitions/dependents`, `nodes/definitions/table_parts`) → `swap` (within the pause) → `features/tables/adopt`.
A whole table is one without a key: a column that `plain_table` chooses, and one leaf.
"""
