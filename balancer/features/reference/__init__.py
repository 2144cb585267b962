"""Reference tables: one home, a copy on every node.

`setup` (checked, and recorded as a table with one tablet, whose owner is the home) → `keeper` with each tick:
`polling/view` says what is wanted, `nodes/tablets/reference_copies` what is there, and `keeper` fixes a copy that is
not right. The home moves through the states of any move, with the steps of `migration/reference_home`; a tablet with
foreign keys to it waits for `migration/stream`. `findings` is what doctor reports.
"""
