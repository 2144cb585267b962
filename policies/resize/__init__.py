"""Splits, merges, tablets ahead of time, expiry. Called by `policies/plan/plan`.

`sizes` → `scope` (which tablets, by which thresholds) → `by_layout` (hash, range, load). Heat: `heat` → `heat_judge`
(the verdict, how many parts, where to cut; the parts' moves are the split's follow-ups). Bounds of rules:
`rule_splits`. `time_ranges`: what is missing ahead, and what has wholly expired.
"""
