"""How a table comes under the balancer: created, or taken over as somebody else made it.

Joins what the nodes say with what the directory keeps. Called by the command line and the daemon.
"""
