"""`balancer table import`: a table that lies on a node as a plain one comes under the balancer while it is written to.

`command` → `plan` (who has the table, what is in the way, keys on two nodes; the dry run ends here) → `run` (the order,
and the argument) → `record` (its progress in the directory; sessions, and a lock against other processes) → `follow`
(changes, by their keys) → `switch` (rehearsal, fences, seals, the commit, the names) → `statements`, `names` (what goes
along with a name).
"""
