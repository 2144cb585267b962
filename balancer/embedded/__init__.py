"""PostgreSQL and ZooKeeper as processes of ours on this machine: for `balancer demo`, applications' tests and our own.

`cluster` starts them, `process` runs one and ends it, `reaper` ends it when we die without doing so.
"""
