"""Django's ORM inside `shard`: one proven transaction, in which everything is as in `atomic`; outside, nothing."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from django.db import IntegrityError, OperationalError, connections, models, transaction
from django.db.transaction import TransactionManagementError

from balancer.client import Isolation
from balancer.client.django import ShardRouter, run, shard
from balancer.client.django.base import close_routers
from balancer.errors import Unavailable, UserError
from tests.support.shards import Shards, user_of

if not settings.configured:
    settings.configure(
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            "shards": {"ENGINE": "balancer.client.django", "NAME": "", "POOL_SIZE": 4},
        },
        DATABASE_ROUTERS=["balancer.client.django.ShardRouter"],
        INSTALLED_APPS=["balancer.client.django"],
        USE_TZ=True,
    )
    django.setup()


class DjangoOrder(models.Model):
    shard_table = "orders"
    n = models.BigIntegerField(primary_key=True)
    user_id = models.BigIntegerField()
    note = models.TextField(default="")

    class Meta:
        app_label = "tests"
        db_table = "orders"


class DjangoAccount(models.Model):
    class Meta:
        app_label = "tests"


@pytest.fixture(autouse=True)
def cluster(shards: Shards) -> Iterator[None]:
    connections["shards"].settings_dict["NAME"] = shards.url
    yield
    close_routers()
    connections.close_all()


def add(user: int, n: int) -> None:
    DjangoOrder.objects.create(user_id=user, n=n)


def numbers(shards: Shards, user: int) -> list[int]:
    statement = "SELECT n FROM orders WHERE user_id = %s"
    return sorted(n for node in shards.dsns for (n,) in shards.node(node).execute(statement, (user,)))


class TestABlock:
    def test_is_committed_at_its_end_and_rolled_back_by_an_exception(self, shards: Shards) -> None:
        def failing() -> None:
            with shard("orders", 2):
                add(2, 1)
                raise ZeroDivisionError

        for user in (1, 2, 3, 4):
            with shard("orders", user) as place:
                add(user, 10 + user)
                assert DjangoOrder.objects.get(user_id=user).n == 10 + user
                assert place.location == place.router.locate("orders", user)
        with pytest.raises(ZeroDivisionError):
            failing()
        assert [numbers(shards, user) for user in (1, 2, 3, 4)] == [[11], [12], [13], [14]]

    def test_says_that_a_key_is_elsewhere(self, shards: Shards, caplog: pytest.LogCaptureFixture) -> None:
        one, other = user_of(shards, 1), user_of(shards, 2)
        with shard("orders", one):
            assert not DjangoOrder.objects.filter(user_id=one).exists()
            assert caplog.messages == []
            assert DjangoOrder.objects.filter(user_id=other).first() is None
        (said,) = caplog.messages
        assert "names a key that is on node pg-b" in said
        assert "test_django.py, line" in said

    def test_has_savepoints(self, shards: Shards) -> None:
        with shard("orders", 1):
            add(1, 1)
            with pytest.raises(IntegrityError), transaction.atomic(using="shards"):
                add(1, 1)
            with shard("orders", 1), transaction.atomic(using="shards"):
                add(1, 2)
        assert numbers(shards, 1) == [1, 2]

    def test_runs_what_waits_for_the_commit_after_it(self, shards: Shards) -> None:
        seen: list[list[int]] = []
        with shard("orders", 1):
            add(1, 1)
            transaction.on_commit(lambda: seen.append(numbers(shards, 1)), using="shards")
            assert seen == []
        assert seen == [[1]]

    def test_does_not_run_it_after_a_rollback(self, shards: Shards) -> None:
        seen: list[int] = []
        with shard("orders", 1):
            add(1, 1)
            transaction.on_commit(lambda: seen.append(1), using="shards")
            transaction.set_rollback(True, using="shards")
        with shard("orders", 1):
            add(1, 2)
        assert (seen, numbers(shards, 1)) == ([], [2])

    def test_as_a_decorator_is_a_new_one_each_time(self, shards: Shards) -> None:
        @shard("orders", 1)
        def work(n: int) -> None:
            add(1, n)

        work(1)
        work(2)
        assert numbers(shards, 1) == [1, 2]

    def test_has_isolation_time_zone_and_streams(self, shards: Shards) -> None:
        with shard("orders", 1, isolation=Isolation.SERIALIZABLE), connections["shards"].cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("serializable",)
            cursor.execute("SHOW TimeZone")
            assert cursor.fetchone() == ("UTC",)
            add(1, 1)
            assert [row.n for row in DjangoOrder.objects.iterator(chunk_size=1)] == [1]

    def test_that_reads_only_refuses_to_write(self, shards: Shards) -> None:
        with pytest.raises(Exception, match="read-only transaction"), shard("orders", 1, read_only=True):
            add(1, 1)

    def test_of_each_thread_is_its_own(self, shards: Shards) -> None:
        def work(user: int) -> None:
            with shard("orders", user):
                barrier.wait(20)
                add(user, user)
            connections.close_all()

        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=work, args=(user,)) for user in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [numbers(shards, user) for user in (1, 2, 3, 4)] == [[1], [2], [3], [4]]


class TestWhatIsRefused:
    def test_a_query_without_a_block(self) -> None:
        with pytest.raises(UserError, match="no shard is open"):
            DjangoOrder.objects.count()
        with shard("orders", 1):
            lazy = DjangoOrder.objects.all()
        with pytest.raises(UserError, match="no shard is open"):
            list(lazy)

    @pytest.mark.parametrize("word", ["commit", "rollback"])
    def test_ending_the_transaction(self, shards: Shards, word: str) -> None:
        def work() -> None:
            with shard("orders", 1):
                add(1, 1)
                getattr(transaction, word)(using="shards")

        with pytest.raises(TransactionManagementError):
            work()
        assert numbers(shards, 1) == []

    def test_a_commit_in_a_statements_text(self, shards: Shards) -> None:
        def work() -> None:
            with shard("orders", 1):
                with connections["shards"].cursor() as cursor:
                    cursor.execute("COMMIT")
                add(1, 1)

        with pytest.raises(UserError, match="leave COMMIT and ROLLBACK"):
            work()
        assert numbers(shards, 1) == []

    def test_atomic_without_a_shard_as_with_atomic_requests(self, shards: Shards) -> None:
        def view() -> None:
            with transaction.atomic(using="shards"):
                add(1, 1)

        with pytest.raises(UserError, match="no shard is open"):
            view()
        with shard("orders", 1):
            view()  # a savepoint, and what went wrong before has left nothing behind
        assert numbers(shards, 1) == [1]

    def test_a_coroutine_whose_queries_run_in_another_thread(self, shards: Shards) -> None:
        async def view() -> None:
            with shard("orders", 1):
                await DjangoOrder.objects.acreate(user_id=1, n=1)

        with pytest.raises(UserError, match="no shard is open"):
            asyncio.run(view())
        assert numbers(shards, 1) == []
        with shard("orders", 1):
            add(1, 2)
        assert numbers(shards, 1) == [2]

    def test_a_key_of_another_tablet_inside(self, shards: Shards) -> None:
        one, other = user_of(shards, 1), user_of(shards, 2)
        with shard("orders", one):
            with pytest.raises(UserError, match=f"key {other} of table orders is in tablet 2 on node pg-b"):
                shard("orders", other).__enter__()
            add(one, 1)
        assert numbers(shards, one) == [1]


class TestMoves:
    def test_a_block_waits_and_follows(self, shards: Shards) -> None:
        user = user_of(shards, 1)
        with shard("orders", user):
            add(user, 1)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                shards.fence(1, lock_timeout=0.05)
        shards.switch(1, "pg-b")
        with shard("orders", user) as place:
            DjangoOrder.objects.filter(user_id=user).update(note="seen")
            assert place.location.node == "pg-b"
        assert shards.node("pg-b").execute("SELECT note FROM orders").fetchall() == [("seen",)]
        shards.fence(1, seconds=30)
        with pytest.raises(Unavailable, match="still being moved"), shard("orders", user, patience=0.1):
            pass
        with pytest.raises(UserError, match="no shard is open"):
            DjangoOrder.objects.count()

    def test_run_tries_again(self, shards: Shards) -> None:
        user, calls = user_of(shards, 1), 0
        with shard("orders", user):
            add(user, 1)

        def append() -> int:
            nonlocal calls
            calls += 1
            row = DjangoOrder.objects.get(user_id=user, n=1)
            if calls == 1:
                shards.node("pg-a").execute("UPDATE orders SET note = 'x'")
            row.note += "+"
            row.save()
            return calls

        assert run("orders", user, append, isolation=Isolation.REPEATABLE_READ) == 2
        with pytest.raises(OperationalError):
            run("orders", user, _deadlock, patience=0.05)


def _deadlock() -> None:
    raise OperationalError("by hand") from psycopg.errors.DeadlockDetected("by hand")


class TestShardRouter:
    def test_says_where_models_are(self) -> None:
        say: Any = ShardRouter()
        assert (say.db_for_read(DjangoOrder), say.db_for_write(DjangoAccount)) == ("shards", None)
        assert say.allow_relation(DjangoOrder(), DjangoAccount()) is False
        assert say.allow_relation(DjangoAccount(), DjangoAccount()) is None
        assert say.allow_migrate("shards", "tests", "djangoaccount") is False
        assert say.allow_migrate("default", "tests", "djangoaccount") is None

    def test_django_may_ask_for_the_version_at_any_time(self) -> None:
        assert connections["shards"].get_database_version()[0] == 18
