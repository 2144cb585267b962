"""The map: which node owns which keys, with what was recorded about it. Everybody may read it; only a leader writes, by
commits on a version that it has read.

`contract` is what every backend does, `model` the records, `snapshot` a view of one version, `invariants` what no
commit may break. `open` finds the backend by its address: `sqlite`, `zookeeper`, or `http` (an instance that tells it,
through `api/directory_feed`). `store` is what all backends have in common.

Following it: `open` → `store/backend` (a view, and the commits since) → `store/follower` (the thread that reads when
something has changed) → the backend. `locate` says where a key is, without any connection to a node.
"""
