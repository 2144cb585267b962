"""Configuration: `balancer.toml`, one file per bundle, and the environment before both.

`load_settings` is the entry; everything it returns is frozen. Secrets are `SecretStr`: they print as asterisks.
"""

from balancer.settings.files import READ_AT_START, DaemonFile, Mode, waits_for_restart
from balancer.settings.load import BundleSettings, NodeSettings, Settings, TableSettings, load_settings
from balancer.settings.migration import MigrationSettings, WantedMode
from balancer.settings.mistakes import ConfigurationError, Mistake

__all__ = [
    "READ_AT_START",
    "BundleSettings",
    "ConfigurationError",
    "DaemonFile",
    "MigrationSettings",
    "Mistake",
    "Mode",
    "NodeSettings",
    "Settings",
    "TableSettings",
    "WantedMode",
    "load_settings",
    "waits_for_restart",
]
