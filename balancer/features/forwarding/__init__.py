"""`balancer_all`: every row of a table from any node, by foreign tables that prove what they show.

`command` sets it up; the leader's `updater` follows the map; `statements` has the SQL. What proves that a tablet is
there is a view of `nodes/schema/proof`.
"""
