"""`python -m balancer`: the same as the `balancer` command."""

from balancer.cli.main import main

main()
