"""One tick of a bundle, and operators' commands. Called by the daemon; reads nodes through `polling`, decides through
`policies`, and changes only the directory.

A tick: `tick` (the straight line: poll, view, plan, admit, act, report) → `windows` (may it now?) →
`policies/plan/plan` → `acting` (starts what may start, through `daemon/leader`) → `verdict` (the word and the sentence)
→ `bundle_state`, `metrics`, `recorder`.

A command: `commands` (`submit` refuses early with the leader's words; `decide` on the leader) → `verbs`. An order that
takes many actions: `orders`. What a bundle remembers between ticks is `memory`: follow-ups, how far balancing has come.

The day: `day_profile` shows each view to `policies/day/book` and keeps the finished hours as notes. Heat: `hot_keys`
samples keys of busy tablets for `policies/resize/heat`.
"""
