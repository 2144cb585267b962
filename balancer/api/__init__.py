"""HTTP: `/v1`, metrics, health, the page. Started by the daemon; reads the directory and what the daemon knows, and
changes things only by commands that the leader carries out.

A request: `server` → `access` (limits, then tokens) → `routes` → `views/*` (documents) or `command_routes` (commands
and their types). `shapes` and `record_shapes` are what documents look like, `problems` what errors do.

An action on the page: `page/actions.js` → `POST /v1/commands/dry-run` → `command_routes` → `planner/commands`
(`outcome_of`, which `--dry-run` uses too, and the equivalent shell command) → shown → `POST /v1/commands`.

An application that may not reach the directory's servers follows it through `directory_feed`.
"""
