"""A small real cluster for applications' tests. They get it from `balancer.client.testing` or the pytest fixture.

`pytest_plugin` → `practice` (servers, a cluster, a leader that follows instructions) → the code for tables and
migrations. Without a cluster: `client/testing` (one database, a router that needs no proof).
"""
