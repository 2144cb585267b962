"""On which node a tablet should live. Called by `policies/plan/wanted`; every mover works on one `Problem`.

`problem` (loads and limits as columns, by `rules`) → `urgent` (must go, or a function places it) → `movers` (which one)
→ `balance`: in bulk (`bulk`), then in single steps and pairs (`refine`); `fit` works off excess; `candidates` says
which nodes may take a tablet, and if not, why. `sharding` has the functions.
"""
