"""What the cluster looks like now: all nodes asked at once, counters turned into rates, one view for the policies.

Called by the planner and the daemon. It reads nodes and the directory's snapshot; it changes nothing.
"""
