"""Bundles that are not there: `scenario` (a story as text) → `simulator` (ticks) → `world` (nodes and tablets) →
`report`; `replay` takes the load from recorded polls. Called by `balancer simulate` and by tests.
"""
