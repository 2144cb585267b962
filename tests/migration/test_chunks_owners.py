"""An index that the owner makes between two chunks does not run his code with the balancer's rights."""

from pathlib import Path
from typing import Any

import pytest

from balancer.migration import copy
from tests.support.owned import move_or_split, owned_cluster, plain_role, run_as

pytestmark = pytest.mark.always

SPY = """
CREATE FUNCTION public.write_down() RETURNS void LANGUAGE plpgsql AS
    $$BEGIN COPY (SELECT current_user) TO '{file}'; EXCEPTION WHEN insufficient_privilege THEN RETURN; END$$;
CREATE FUNCTION public.spy(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM public.write_down(); RETURN $1; END$$;
"""


def test_an_index_that_comes_between_two_chunks(
    tmp_path: Path, server_folder: Path, pair: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = server_folder / f"seen-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o777)  # servers may run as another user
    original = copy._copy_chunk
    with plain_role(pair, SPY.format(file=folder / "who")) as owner:
        columns = "(id bigint NOT NULL, n bigint, PRIMARY KEY (id))"
        cluster = owned_cluster(tmp_path, pair, owner, columns=columns, root="public.orders")

        def copy_chunk(*given: Any) -> None:
            with cluster.connect("a") as connection:
                run_as(connection, owner, "CREATE INDEX IF NOT EXISTS bad ON public.orders_t2 (id, (public.spy(1)))")
            original(*given)

        monkeypatch.setattr(copy, "_copy_chunk", copy_chunk)
        done = move_or_split(cluster, "replicate", content=False)
        assert "function public.spy(bigint)" in done.error
        cluster.close()
        assert not (folder / "who").exists()
