"""`balancer directory hand-over`: whole bundles into another directory while applications run.

`command` → `checks` (everything in the way, rehearsed commits included) → `run` (the order, and the argument) →
`directory/handover_record` (the record that closes a bundle, and the signpost) → `statements` (a node's row, under the
leaders' locks; `balancer.enter` compares it in each step of any leader). `directory/identity` says which directory it
is; `daemon/configuration` leaves such bundles alone; `TransactionRequest.elsewhere` tells clients.
"""
