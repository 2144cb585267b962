"""Fixtures of other rooms, under their names here."""

from tests.daemon.conftest import _logs_apart as _logs_apart
from tests.daemon.conftest import fleet as fleet
