"""`balancer run`: the daemon."""

from balancer.daemon.run import run as run_daemon
from balancer.logs import set_up_logs
from balancer.settings import load_settings
from balancer.terminal.options import ConfigOption


def run(config: ConfigOption = None) -> None:
    """Runs the daemon: polls, plans, acts within the schedule, and explains itself, until it is told to stop.

    SIGTERM hands over to a standby and exits; SIGHUP rereads the configuration.
    """
    settings = load_settings(config)
    set_up_logs(settings.daemon.log.level, settings.daemon.log.format)
    run_daemon(settings)
