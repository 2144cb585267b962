"""`balancer demo`: the main job on an embedded cluster, for somebody who has two minutes."""
