"""Fixtures of other rooms, under their names here."""

from tests.daemon.conftest import _logs_apart as _logs_apart
from tests.daemon.conftest import fleet as fleet
from tests.daemon.conftest import leadership as leadership
from tests.migration.conftest import cluster as cluster
from tests.migration.conftest import pair as pair
