"""`balancer_all`."""
