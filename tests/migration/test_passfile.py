"""Passwords in libpq's passfile, as the README offers: the target's server, which cannot read it, connects as well."""

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from balancer.migration.begin import begin_move
from tests.support.cluster import build, hash_table, hash_tablets, insert_rows


def test_a_move_streams_although_only_the_passfile_knows_the_password(
    tmp_path: Path, pair: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {node: conninfo_to_dict(dsn) for node, dsn in pair.items()}
    passfile = tmp_path / "pgpass"
    passfile.write_text("".join(f"{f['host']}:{f['port']}:*:{f['user']}:{f['password']}\n" for f in facts.values()))
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    without = {node: make_conninfo("", **{**fact, "password": None}) for node, fact in facts.items()}
    tablets = hash_tablets(2, ["a"])
    cluster = build(tmp_path, without, hash_table(), tablets)
    try:
        insert_rows(cluster, tablets, range(100))
        directory = cluster.directory()
        leadership = cluster.become_leader(directory)
        done = cluster.runner(directory, leadership).run(begin_move(directory, leadership, 1, "b").id)
        assert (done.state, done.mode, done.error) == ("done", "replicate", "")
    finally:
        cluster.close()
