"""Applications that keep track of what they did, and what must be true in the end. Each is a small file:

- `set_of_ids`: rows inserted once and deleted once. Finds rows that are lost, doubled or back.
- `list_append`: several writers append to few rows. Finds lost and doubled writes, forks and wrong order.
- `hot_registers`: compare-and-set on very few rows. Each row must be linearizable (`linearizable` decides).
- `bank`: money goes back and forth between two colocated roots. Every snapshot has the same sum.

What they have in common:

- `approach`: how a client reaches a row (root, leaf or `balancer_all`; plain or with `hold`), and which errors mean
  "try again".
- `caller`: one client's connections: a whole transaction is one message, and its outcome is done, again or unknown.
- `workload`: what each of the four says about itself, and the occurrences that make up a history.
- `crew`: clients in processes and threads of their own, and their account at the end.
"""
