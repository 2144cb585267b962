"""The command tree, and the commands that belong to no feature. `main` finds a command's module by name when it is
called; each feature has its own in `command`, and what all of them need is in `terminal`.

`balancer move`: `migrate` → `terminal/operate` (waits for the answer) → `planner/commands` (`submit`: refused at once,
or put into the directory) … on the leader as in `daemon`.
"""
