"""`balancer` whose leader waits only moments for clients: run as `python -m tests.support.impatient_daemon run …`."""

from balancer.cli.main import main
from balancer.daemon import atomic_recovery

if __name__ == "__main__":
    atomic_recovery.AGE = 0.3
    main()
