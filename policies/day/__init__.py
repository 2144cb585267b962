"""The profile of the day: what tablets do over 48 hours. `planner/day_profile` shows each view to `book`, which folds
an hour into `profile` (a byte or two each; splits and merges are followed); `dimensions` turns it into parts of the day
that a plan weighs.
"""
