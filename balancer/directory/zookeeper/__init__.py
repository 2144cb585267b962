"""The directory in ZooKeeper: the only room that speaks to it. Opened by `directory/open` only.

`session` (one connection, with many requests under way) → `load` (the first view, watches, imports) → `backend`
(commits, conditional on the root's version) → `election`. `paths` is the layout, `access` who may read and write it.
"""
