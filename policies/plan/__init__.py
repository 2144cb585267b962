"""The whole plan of a bundle: same input, same plan, with a reason for each action and for each that was left out.

`plan` asks `policies/resize` for splits and merges and `wanted` for where every tablet should live, and shares out the
slots: `order` (which moves now, alone or together), `score`, `policies/budgets`. `record` is what is kept of it,
`explain` why a tablet is where it is and not elsewhere. Called by `planner/tick` and the simulator.
"""
