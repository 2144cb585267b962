"""Connections, pools, asking many nodes at once, addresses."""
