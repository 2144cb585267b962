"""Recorded polls played again: `balancer record|simulate`.

`command` stores what `polling/view` shows in `poll_file`, and reads it back for `policies/simulator`, whose placement
is its own: only the load comes from the polls.
"""
