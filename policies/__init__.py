"""What to do: sizes, heat, placement, budgets. Pure: no clock, no input or output. Imported as `balancer.policies`."""

if __name__ != "balancer.policies":
    raise ImportError("this folder is the package balancer.policies: a module under two names would be two modules")
