"""A few stories of `make chaos`, with a new seed in each run."""

from pathlib import Path

from balancer.embedded.postgres import PostgresServer
from tests.support import chaos
from tests.support.sampling import SEED
from tests.support.servers import new_database


def test_whatever_an_application_and_an_operator_do_nothing_is_lost_or_made(
    tmp_path: Path, postgres15: PostgresServer, postgres18: PostgresServer
) -> None:
    with (
        new_database(postgres15) as here,
        new_database(postgres18) as there,
        chaos.cluster(tmp_path, [here.dsn, there.dsn]),
    ):
        chaos.tell(examples=2, seed=int(SEED) if SEED.isdigit() else 0, steps=12)
