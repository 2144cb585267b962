"""Idle, slow and waiting connections against an instance that leads and works: it goes on with both."""

from tests.support.crowd import crowds
from tests.support.fleet import Fleet, owners, running, until
from tests.support.vitals import vitals

EACH = 150


def test_a_crowd_of_bad_connections_costs_neither_the_leadership_nor_the_work(fleet: Fleet) -> None:
    fleet.write("observe")
    fleet.create(["a"], rows=500)
    with running(fleet.config) as process, fleet.directory() as directory:
        until(process.leads, 60, "an election")
        epoch = directory.snapshot().epoch
        before = vitals(process.pid).sockets
        with crowds(process.url, EACH):
            until(lambda: vitals(process.pid).sockets > before + EACH, 60, "the crowd")
            fleet.write("autonomous")
            until(lambda: owners(directory.snapshot())["a"] < 4, 120, "the spreading of tablets")
            for _ in range(20):
                assert process.get("/v1/status").status_code == 200
            assert process.leads()
        assert directory.snapshot().epoch == epoch, "nobody else has led meanwhile"
        until(lambda: vitals(process.pid).sockets < before + EACH // 2, 60, "the crowd's going")
