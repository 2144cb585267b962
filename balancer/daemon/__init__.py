"""One process: election, when what is done, and what only a leader does. Started by `balancer run`; nothing imports it
but the command line.

`run` → `daemon` → `leadership` (stands for election and resigns; who is present by the instances' notes, what a change
would interrupt; `policies/leader_choice` decides) → `scheduler` (when) → `ticks` (which bundles) → `planner/tick`.

What a leader does: `leader` begins and ends migrations and carries out commands (`planner/commands` decides; then
`migration/begin`, `migration/pool`); `housekeeping`, `node_guard` and `atomic_recovery` look after the nodes. What is
done for a feature lies with the feature: `features/*`.
"""
