"""Everything that we install on a node, versioned as one: `*.sql`, and what brings a node from one version to the next.

`install` (once, or from an older version; `texts` has the files and the numbers that they share with Python) →
`leader_transaction` (every step of a leader: this node, this directory, no newer leader) → `proof` (the locks and views
by which transactions prove that a tablet is here), `decisions`, `ddl_journal`, `blockers`. The arguments are in the
files: `hold.sql` for clients, `messages.sql`, `refuse_write.sql` for fences.
"""
