"""Connections to nodes. Called by all that talk to one.

`addresses` (from the configuration) → `connection` (opened, and asked whose node it is; errors in our classes) →
`own_schema` (whether what is called there is ours). `holder` keeps sessions for those who need them again; `ask_all`
asks many nodes at once, on threads that all bundles share.
"""
