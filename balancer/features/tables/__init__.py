"""How a table comes under the balancer: created, or taken over as somebody else made it. Every other way in ends here.

`survey` (what the nodes have, and which keys it covers) → `adopt` or `create` → one commit in the directory. With keys
from sequences `adopt` gives each node a lane of numbers (`nodes/catalog/sequences`). Called by commands.
"""
