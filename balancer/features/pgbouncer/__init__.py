"""PgBouncer in front of the nodes: `bouncer` writes an alias for each tablet or node, and pauses a pool around a
switch; `command` is `balancer pgbouncer sync`. The daemon follows the directory with it where the configuration says
so.
"""
