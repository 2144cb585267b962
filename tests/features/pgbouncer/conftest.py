"""Fixtures of other rooms, under their names here."""

from tests.client.conftest import dsns as dsns
from tests.client.conftest import shards as shards
from tests.daemon.conftest import _logs_apart as _logs_apart
