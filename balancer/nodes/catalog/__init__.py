"""Reads what a table is, and what forbids us to touch it: roots, bounds, shapes, keys, sequences, owners' code. Called
by everything that is about to change a table; changes nothing.

Before a table is taken or moved: `preflight` (what is missing, with the statements that grant it) → `roots`, `shapes`,
`foreign_keys`, `owners_code` → `findings` (in words).
"""
