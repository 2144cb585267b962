"""One room per thing that a user can name. Nothing below imports a feature; commands, daemon and API start them.

The same names mean the same in each: `command` is what the command line calls, `plan` decides without changing
anything, `run` is the order, `statements` has the SQL.
"""
