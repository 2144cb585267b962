"""Fixtures of other rooms, under their names here."""

from tests.migration.conftest import cluster as cluster
from tests.migration.conftest import pair as pair
