"""The documents of `/v1`: plain data from a snapshot and what the daemon knows. Called by `api/routes` only; no I/O of
their own but through `api/source`.

The past on the page: a tick → `planner/recorder` (an hour, and coarser a day) … later `page/timeline.js` → `GET
/v1/cluster?at=…` → `past` → the same drawing code as for the present. For moments before the instance started it undoes
the commits since then, which `api/source` has.
"""
