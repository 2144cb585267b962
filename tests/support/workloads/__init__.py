"""Applications that keep account, and what their accounts must come to. Each is a small file:

- `set_of_ids`: rows inserted once and deleted once. Finds rows that are lost, doubled or back.
- `list_append`: several writers append to few rows. Finds lost and doubled writes, forks and wrong order.
- `hot_registers`: compare-and-set on very few rows. Each row must be linearizable (`linearizable` decides).
- `bank`: money goes to and fro between two colocated roots. Every snapshot has the same sum.

What they have in common:

- `approach`: how a client reaches a row (root, leaf or `balancer_all`; plain or with `hold`), and which errors mean
  "try again".
- `caller`: one client's connections: a whole transaction is one message, and its outcome is done, again or unknown.
- `workload`: what each of the four says of itself, and the occurrences that a history is made of.
- `crew`: clients in processes and threads of their own, and their account at the end.
"""
