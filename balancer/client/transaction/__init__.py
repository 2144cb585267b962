"""A transaction on the owner of a key: begin, prove, wait, try again, end. Called by the routers and the frameworks.

`steps` is the one logic, without I/O; `drivers` carries out what it asks for, blocking or with asyncio, on connections
of `pools`; on the node it is `balancer.hold` (`nodes/schema/hold.sql`, with the argument). If nothing is in the way, a
blocking transaction takes the short path, `block`: a connection that has not begun (`connections`), whose first
statement carries BEGIN and the proof (`wire`); the steps begin only if that is refused. `run(…, pipelined=True)` goes
through `pipelined`, and a reader that may use a standby through `replicas`. `failures` says what a retry cures.
"""
