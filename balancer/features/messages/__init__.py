"""Exactly-once messages between shards: what daemon and operator do for them. The argument:
`nodes/schema/messages.sql`.

`client/messages` sends (a ticket before the commit, delivery after it) → on the nodes `balancer.send_message`,
`deliver_message`, `settle_message`. What a sender leaves behind: `service`, once a second → `delivery`. How a table
gets an outbox and an inbox, and loses them: `command` → `enable` (with the order, and why) → `roots`. `service` also
tells every node what `settings/messages` reads.
"""
