"""What the cluster looks like now: all nodes asked at once, counters turned into rates, one view for the policies.
Called by the planner and the daemon. It reads nodes and the directory's snapshot; it changes nothing.

`poller` → `nodes/session/ask_all` (whom to ask, whom to wait for) → `node_poll` (one request; what is already known is
not sent again; the answer as columns) → `ownership` (where node and directory differ), `rewind` (whether a node has
gone back in time) → `rates` (all nodes as one sample) → `view`. `tablet_index` has what the directory says about a
node's tablets.
"""
