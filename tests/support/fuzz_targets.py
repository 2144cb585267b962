"""What takes input from outside, as targets for the fuzzers: each is run for real, and its answer judged."""

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import psycopg
from hypothesis import strategies as st
from kazoo.client import KazooClient

from balancer.cli.main import COMMANDS
from balancer.directory.history import export_document
from balancer.directory.model import LogEntry, Node, Put, RecordKind
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.codec import StoredEntry, pack_entry
from balancer.directory.store.host_cache import MARK, pack_log, pack_snapshot, unpack_log, unpack_snapshot
from balancer.errors import Refused, UserError
from balancer.features.pgbouncer import bouncer
from balancer.nodes.session.connection import translate
from balancer.schedules.formula import Formula
from balancer.schedules.language import FormulaEvaluationError, FormulaSyntaxError
from balancer.terminal import operate
from tests.support.bundle_states import report_small
from tests.support.commands import Result, balancer_here
from tests.support.directories import fill
from tests.support.fuzz_texts import BUNDLE, DAEMON, PARAMETERS, PATHS, PLACES, READERS, SAMPLES, TOML, WISH
from tests.support.fuzzing import FuzzTarget
from tests.support.hostile_input import as_json, changed, damaged, documents, edited, values
from tests.support.instance import bearer, instance_in, serving

SCENARIOS = Path(__file__).parents[1] / "scenarios"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
_DONE, _DAMAGED, _WRONG_INPUT, _UNAVAILABLE, _REFUSED = 0, 1, 2, 3, 4


def judged(result: Result, codes: tuple[int, ...], *, lines: int = 30) -> str:
    """What is wrong with how a command ended."""
    if result.code not in codes:
        return f"exit code {result.code}: {result.err[:200]!r}"
    if "Traceback" in result.err:
        return "a traceback"
    if _CONTROL.search(result.out + result.err):
        return f"control characters reach the terminal: {(result.out + result.err)[:300]!r}"
    if result.err.count("\n") > lines or len(result.err) > 20_000:
        return f"{result.err.count(chr(10))} lines, {len(result.err)} characters of complaint"
    try:
        (result.out + result.err).encode()
    except UnicodeEncodeError:
        return "text that no stream takes"
    return ""


def formulas() -> FuzzTarget:
    words = st.sampled_from(
        ("hours", "minutes", "<", "==", "%", "&&", "||", "!", "(", ")", "in", ",", "-", "7", "0", " ")
    )
    text = st.one_of(st.lists(words, max_size=12).map(" ".join), values, edited(("hours < 6 && minutes % 20 == 0",)))

    def check(formula: str) -> str:
        try:
            Formula(formula).evaluate(hours=3, minutes=7)
        except (FormulaSyntaxError, FormulaEvaluationError) as error:
            return "" if len(str(error)) < 20_000 else "a complaint without end"
        return ""

    return FuzzTarget("formulas", text, check)


def configurations(folder: Path) -> FuzzTarget:
    (folder / "bundles").mkdir()
    (folder / "token").write_text("correct-horse\n")
    daemon, bundle = DAEMON.format(folder=folder), BUNDLE.format(folder=folder)
    cases = st.tuples(
        st.one_of(st.just(daemon), edited((daemon,), TOML)), edited((bundle,), TOML), st.sampled_from(("check", "show"))
    )

    def check(case: tuple[str, str, str]) -> str:
        for name, text in zip(("balancer.toml", "bundles/shop.toml"), case, strict=False):
            (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        return judged(balancer_here("config", case[2], "--config", folder / "balancer.toml"), (_DONE, _WRONG_INPUT))

    return FuzzTarget("configurations", cases, check)


def scenarios(folder: Path) -> FuzzTarget:
    texts = tuple(re.sub(r"(?m)^run .*", "run 30m", file.read_text()) for file in sorted(SCENARIOS.glob("*.txt")))

    def check(text: str) -> str:
        (folder / "scenario.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
        return judged(balancer_here("simulate", folder / "scenario.txt"), (_DONE, _DAMAGED, _WRONG_INPUT))

    return FuzzTarget("scenarios", edited(texts), check)


def imports(folder: Path) -> FuzzTarget:
    with open_directory(f"sqlite://{folder}/source.db") as source:
        document = export_document(fill(source))
    file, target = folder / "document.json", folder / "target.db"

    def check(case: Any) -> str:
        file.write_bytes(as_json(case))
        result = balancer_here("directory", "import", file, "--force", "--directory", f"sqlite://{target}")
        return judged(result, (_DONE, _WRONG_INPUT, _REFUSED))

    return FuzzTarget("imports", changed(document), check)


def command_lines(folder: Path) -> FuzzTarget:
    address = f"sqlite://{folder}/commands.db"
    with open_directory(address) as opened:
        fill(opened)
    words = tuple(word for word in COMMANDS if word not in ("run", "demo", "forward", "compare-placements"))
    inner = ("show", "check", "try", "list", "export", "lost", "adopt", "double", "tablet", "sync", "sql", "why")
    plain = st.sampled_from(
        ("shop", "orders", "1", "1001", "pg-a", "pg-b", "--json", "-o", "json", "--limit", "--dry-run")
    )
    known = st.sampled_from(("--after", "--tablet", "--node", "--key", "-n", "--timezone", "--table", "--at", "--into"))
    cases = st.tuples(
        st.sampled_from(words), st.lists(st.one_of(plain, known, values, st.sampled_from(inner)), max_size=5)
    )

    def check(case: tuple[str, list[str]]) -> str:
        before, operate.give.__defaults__ = operate.give.__defaults__, (0.01,)
        try:
            arguments = [word.replace("\x00", "") for word in case[1]]  # no system passes one on
            given = ["--directory", address] if case[0] not in ("config", "simulate", "schedule") else []
            result = balancer_here(case[0], *arguments, *given, env={"COLUMNS": "80"})
        finally:
            operate.give.__defaults__ = before
        shown = Result(result.code, "", _CONTROL.sub("?", result.err.encode("utf-8", "replace").decode()))
        return judged(shown, (_DONE, _DAMAGED, _WRONG_INPUT, _UNAVAILABLE, _REFUSED))

    return FuzzTarget("command lines", cases, check)


def requests(client: httpx.Client) -> FuzzTarget:
    body = st.one_of(
        changed(WISH).map(as_json), changed(SAMPLES).map(as_json), documents.map(as_json), st.binary(max_size=50)
    )
    deep = st.sampled_from((b"[" * 50_000, b'{"verb":' * 20_000, b'{"verb": "x", "wait": NaN}', b'{"verb": "\\ud800"}'))
    path = st.one_of(st.sampled_from(PATHS), st.tuples(st.sampled_from(PATHS), values).map("/".join))
    parameters = st.lists(st.tuples(st.sampled_from(PARAMETERS), values), max_size=3)
    cases = st.tuples(st.sampled_from(("GET", "POST", "DELETE")), path, parameters, st.one_of(body, deep))

    def check(case: tuple[str, str, list[tuple[str, str]], bytes]) -> str:
        method, path, parameters, content = case
        query = "&".join(f"{name}={_quoted(value)}" for name, value in parameters if (name, value) != ("wait", "1"))
        place = quote(path.encode("utf-8", "surrogatepass"), safe="/")
        url = f"{str(client.base_url).rstrip('/')}{place}?{query}"[:12000]
        headers = {**bearer(), "Content-Type": "application/json"}
        sent = client.build_request(method, url, headers=headers, content=content if method == "POST" else None)
        answer = client.send(sent)
        if answer.status_code >= 500 and not (path == "/readyz" or answer.status_code == 503):
            return f"status {answer.status_code}: {answer.text[:200]}"
        if (
            answer.status_code >= 400
            and path.startswith("/v1")
            and not answer.headers["content-type"].startswith("application/problem+json")
        ):
            return f"status {answer.status_code} without a problem document"
        return ""

    return FuzzTarget("requests", cases, check)


def _quoted(value: str) -> str:
    return quote(value.encode("utf-8", "surrogatepass"), safe="")


def files(folder: Path) -> FuzzTarget:
    """The SQLite file with other bytes in each kind of row: the codec is that of the znodes."""
    whole, broken = folder / "whole.db", folder / "broken.db"
    with open_directory(f"sqlite://{whole}") as opened:
        fill(opened)
    with closing(sqlite3.connect(whole)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        stored = [bytes(data) for (data,) in connection.execute("SELECT data FROM record UNION SELECT data FROM page")]
    data = st.one_of(
        st.sampled_from(stored).flatmap(damaged), documents.map(lambda document: b"\x02\x00" + as_json(document))
    )

    def check(case: tuple[str, bytes, tuple[str, ...]]) -> str:
        place, content, command = case
        shutil.copy(whole, broken)
        for left in folder.glob("broken.db-*"):
            left.unlink()
        with closing(sqlite3.connect(broken, isolation_level=None)) as connection:
            connection.execute(PLACES[place], (content,))
        return judged(
            balancer_here(*command, "--directory", f"sqlite://{broken}"), (_DONE, _DAMAGED, _UNAVAILABLE, _REFUSED)
        )

    return FuzzTarget("stored rows", st.tuples(st.sampled_from(sorted(PLACES)), data, st.sampled_from(READERS)), check)


def znodes(servers: str, client: KazooClient) -> FuzzTarget:
    """Other bytes in every kind of znode of a real directory."""
    cluster = f"fuzz-{uuid4().hex[:8]}"
    with open_directory(f"zk://{servers}/{cluster}") as opened:
        fill(opened)
    places = [f"/{cluster}/{name}" for name in _below(client, f"/{cluster}")]
    kept = {path: client.get(path)[0] for path in places}

    def check(case: tuple[str, bytes, tuple[str, ...]]) -> str:
        place, content, command = case
        client.set(place, content)
        try:
            result = balancer_here(*command, "--directory", f"zk://{servers}/{cluster}")
        finally:
            client.set(place, kept[place])
        return judged(result, (_DONE, _DAMAGED, _UNAVAILABLE, _REFUSED))

    cases = st.sampled_from(places).flatmap(
        lambda place: st.tuples(
            st.just(place),
            st.one_of(damaged(kept[place]), documents.map(lambda document: b"\x02\x00" + as_json(document))),
            st.sampled_from(READERS),
        )
    )
    return FuzzTarget("znodes", cases, check)


def _below(client: KazooClient, path: str) -> Iterator[str]:
    for name in sorted(client.get_children(path)):
        yield name
        yield from (f"{name}/{below}" for below in _below(client, f"{path}/{name}"))


def addresses(folder: Path) -> FuzzTarget:
    """Nodes' addresses on their way into PgBouncer's file."""
    with open_directory(f"sqlite://{folder}/addresses.db") as opened:
        snapshot = fill(opened)
    dsn = st.one_of(
        values,
        edited(("postgresql://balancer@pg-a:5432/shop?sslmode=require", "host=pg-a port=5432 dbname=shop")),
        values.map(lambda value: f"postgresql://h/{_quoted(value)}"),
        values.map(lambda value: "host='" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"),
    )

    def check(text: str) -> str:
        nodes = {name: Node(name, "shop", text) for name in snapshot.nodes}
        poisoned = replace(snapshot, records={**snapshot.records, RecordKind.NODE: nodes})
        try:
            made = bouncer.render(bouncer.aliases(poisoned, bouncer.Per.NODE))
        except UserError:
            return ""
        names = [line.partition(" = ")[0] for line in made.splitlines() if line and line[0] not in ";["]
        return "" if names == sorted(snapshot.nodes) else f"the file has other lines: {made!r}"

    return FuzzTarget("addresses", dsn, check)


def messages() -> FuzzTarget:
    """What a server says, on its way to a person: a database's function may raise any text."""

    def check(case: tuple[type[psycopg.Error], str]) -> str:
        kind, text = case
        told = str(translate("pg-a", kind(text)))
        return f"it reaches the terminal as {told[:200]!r}" if _CONTROL.search(told) or "\n" in told else ""

    kinds = st.sampled_from((psycopg.errors.RaiseException, psycopg.OperationalError, psycopg.errors.DiskFull))
    return FuzzTarget("messages", st.tuples(kinds, st.one_of(values, st.text())), check)


def snapshots(view: Snapshot) -> FuzzTarget:
    """What an instance sends to its followers, damaged and signed again; and a commit in the same way."""
    sent = pack_snapshot(view)
    start = len(MARK) + 16
    commit = pack_log([view_entry(view)])

    def check(case: tuple[bytes, bytes]) -> str:
        body, log = case
        with suppress(Refused):
            unpack_log(log)
        with suppress(Refused):
            read = unpack_snapshot(MARK + blake2b(body, digest_size=16).digest() + body, lazy=False)
            for table in read.index:
                list(read.tablets(table))
        return ""

    return FuzzTarget("snapshots", st.tuples(damaged(sent[start:]), damaged(commit)), check)


def view_entry(view: Snapshot) -> bytes:
    """A commit that puts some tablets of a view."""
    changes = tuple(Put(tablet) for table in view.index for tablet in view.tablets(table)[:2])
    return pack_entry(StoredEntry(LogEntry(1, "t", 0.0, "a", None, "r", changes)))


@contextmanager
def every_target(folder: Path, zookeeper: str) -> Iterator[list[FuzzTarget]]:
    """All of them, with what they need around them."""
    with ExitStack() as stack:
        places = {
            name: folder / name
            for name in ("configurations", "scenarios", "imports", "commands", "http", "files", "dsn")
        }
        for place in places.values():
            place.mkdir()
        instance = stack.enter_context(instance_in(places["http"]))
        fill(instance.directory())
        instance.follower().wait(0, 5)
        report_small(instance)
        client = KazooClient(zookeeper)
        client.start()
        stack.callback(client.close)
        stack.callback(client.stop)
        yield [
            formulas(),
            configurations(places["configurations"]),
            command_lines(places["commands"]),
            scenarios(places["scenarios"]),
            imports(places["imports"]),
            requests(stack.enter_context(serving(instance))),
            files(places["files"]),
            znodes(zookeeper, client),
            addresses(places["dsn"]),
            messages(),
            snapshots(instance.follower().snapshot),
        ]
