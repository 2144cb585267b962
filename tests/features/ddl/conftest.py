"""Fixtures of other rooms, under their names here."""

from tests.cli.conftest import address as address
from tests.cli.conftest import directory as directory
