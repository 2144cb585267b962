"""`balancer ddl apply|status`: a change of the schema on every node, which may be interrupted and undone.

`command` → `steps` (the file as steps, and what is refused; pure) → `apply` (rehearsal, hold, each step on every node,
comparison; its progress in the directory) → `statements` (a statement with its owner's rights, an index leaf by leaf) →
`nodes/schema/ddl_journal` (noted in the same transaction).
"""
