"""A small real cluster for applications' tests. They get at it by `balancer.client.testing` or the pytest fixture."""
