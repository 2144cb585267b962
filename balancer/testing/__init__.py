"""A small real cluster for applications' tests. They get it from `balancer.client.testing` or the pytest fixture."""
