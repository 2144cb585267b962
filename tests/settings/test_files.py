"""What people write in the files, and what becomes of it."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from balancer.errors import UserError
from balancer.policies.options import AUTO, GB, MB, InMemoryMode
from balancer.settings import ConfigurationError, Mode, WantedMode, load_settings
from balancer.settings.report import effective
from tests.support.commands import balancer_here

pytestmark = pytest.mark.quick

DAEMON = 'directory = "sqlite:///var/lib/balancer/directory.db"\n'
BUNDLE = """
mode = "autonomous"
timezone = "Europe/Moscow"

[tablet_balancer_config]
tablet_balancer_schedule = "hours < 6 && minutes % 20 == 0"
desired_tablet_size = "10GB"
enable_cell_balancer = true

[tablet_balancer_config.groups.hot]
schedule = "minutes % 5 == 0"
max_action_count = 7

[migration]
mode = "read-only"
write_pause_budget = "250ms"
moves_per_node = 2
wal_budget = "8GB"

[nodes.pg-a]
dsn = "postgresql://balancer:hush-a@pg-a/shop"
zone = "east"
weight = 1.5

[nodes.pg-b]
dsn = "host=pg-b dbname=shop password='hush-b'"

[tables.orders]
roots = ["orders", "public.order_items"]
layout = "hash"
key = ["user_id"]
tablets = 64
in_memory_mode = "compressed"
group = "hot"
"""


RULED = """
nodes = { n1 = { dsn = "postgresql://n1/shop", zone = "eu" }, n2 = { dsn = "postgresql://n2/shop" } }
[tables]
orders = { roots = ["orders"], layout = "range", key = ["region", "id"] }
ledger = { roots = ["ledger"], layout = "hash", key = ["id"] }
archive = { roots = ["archive"], layout = "hash", key = ["id"] }
"""


def write(folder: Path, daemon: str = DAEMON, bundles: Mapping[str, str] | None = None) -> Path:
    (folder / "bundles").mkdir(exist_ok=True)
    for name, text in (bundles or {}).items():
        (folder / "bundles" / f"{name}.toml").write_text(text)
    (folder / "balancer.toml").write_text(daemon)
    return folder / "balancer.toml"


def test_a_bundle_is_read_into_types(tmp_path: Path) -> None:
    bundle = load_settings(write(tmp_path, bundles={"shop": BUNDLE})).bundle("shop")
    assert bundle.mode is Mode.AUTONOMOUS
    assert bundle.timezone == "Europe/Moscow"
    assert bundle.options.balancer.desired_tablet_size == 10 * GB
    assert bundle.options.balancer.min_tablet_size == 128 * MB
    assert bundle.options.balancer.groups["hot"].max_action_count == 7
    assert bundle.options.budgets.moves_per_node == 2
    assert bundle.migration.mode is WantedMode.READ_ONLY
    assert bundle.migration.write_pause_budget == 0.25
    assert bundle.nodes["pg-a"].weight == 1.5
    assert bundle.tables["orders"].roots == ("public.orders", "public.order_items")
    assert bundle.options.table("orders").in_memory_mode is InMemoryMode.COMPRESSED


def test_passwords_are_kept_apart_from_addresses(tmp_path: Path) -> None:
    bundle = load_settings(write(tmp_path, bundles={"shop": BUNDLE})).bundle("shop")
    assert bundle.nodes["pg-a"].dsn == "postgresql://balancer@pg-a/shop"
    assert bundle.nodes["pg-b"].dsn == "host=pg-b dbname=shop"
    assert [node.password.get_secret_value() for node in bundle.nodes.values() if node.password] == ["hush-a", "hush-b"]
    assert "hush" not in repr(bundle.nodes)


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALANCER_TICK", "3s")
    monkeypatch.setenv("BALANCER_HTTP__LISTEN", "127.0.0.1:9999")
    monkeypatch.setenv("BALANCER_BUNDLE_SHOP__MIGRATION__MODE", "replicate")
    monkeypatch.setenv("BALANCER_PASSWORD_PG_A", "from-outside")
    settings = load_settings(write(tmp_path, bundles={"shop": BUNDLE}))
    bundle = settings.bundle("shop")
    assert settings.daemon.tick == 3.0
    assert settings.daemon.http.listen == "127.0.0.1:9999"
    assert bundle.migration.mode is WantedMode.REPLICATE
    password = bundle.nodes["pg-a"].password
    assert password is not None
    assert password.get_secret_value() == "from-outside"


def test_auto_is_read_and_shown(tmp_path: Path) -> None:
    text = BUNDLE.replace("[migration]", '[migration]\nthrottle = "auto"\nmoves_total = "auto"')
    settings = load_settings(write(tmp_path, bundles={"shop": text}))
    bundle = settings.bundle("shop")
    assert (bundle.migration.throttle, bundle.options.budgets.moves_total) == (AUTO, AUTO)
    shown = {value.key: value.value for value in effective(settings, "shop")}
    assert (shown["migration.throttle"], shown["migration.moves_total"]) == ("auto", "auto")


def test_every_value_says_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALANCER_BUNDLE_SHOP__MIGRATION__MODE", "replicate")
    file = write(
        tmp_path, DAEMON + 'timezone = "Asia/Tokyo"\n', {"shop": BUNDLE.replace('timezone = "Europe/Moscow"', "")}
    )
    origins = {value.key: (value.value, value.origin) for value in effective(load_settings(file), "shop")}
    assert origins["timezone"] == ("Asia/Tokyo", str(file))
    assert origins["mode"] == ("autonomous", str(tmp_path / "bundles" / "shop.toml"))
    assert origins["migration.mode"] == ("replicate", "environment BALANCER_BUNDLE_SHOP__MIGRATION__MODE")
    assert origins["tablet_balancer_config.max_tablet_size"] == (20 * GB, "default")
    assert origins["nodes.pg-a.password"][0] == "**********"


MISTAKES = [
    ('mode = "automatic"', "mode: must be 'observe', 'approve' or 'autonomous'"),
    ('timezone = "Mars/Olympus"', "timezone: 'Mars/Olympus' is not a time zone"),
    ('[tablet_balancer_config]\ndesired_tablet_sice = "1GB"', "unknown key; did you mean 'desired_tablet_size'?"),
    ('[tablet_balancer_config]\nmax_tablet_size = "20 gigs"', "'20 gigs' is not a size"),
    ('[migration]\nthrottle = "fast"', "'fast' is not a size"),
    ('[migration]\nmoves_total = "many"', "moves_total: 'many' is neither a number nor \"auto\""),
    ('[migration]\nchunk_size = "1KB"', "chunk_size: must be 8KB or more"),
    ("[migration]\nchunks_at_once = 0", "chunks_at_once: must be 1 or more"),
    ("[migration]\nthrottle_share = 0.0", "throttle_share: must be greater than 0"),
    ('[tablet_balancer_config]\ntablet_balancer_schedule = "hours <"', "tablet_balancer_schedule: "),
    ('[migration]\nwrite_pause_budget = "250 msec"', "'250 msec' is not a duration"),
    ('[migration]\nmode = "fast"', "migration.mode: must be 'auto', 'replicate' or 'read-only'"),
    ("[nodes.a]\nweight = 0", "nodes.a.dsn: is required"),
    ("[nodes.none]\nweight = 0", "nodes.none.dsn: is required"),
    ('none = "autonomous"', "none: unknown key; did you mean 'nodes'?"),
    ('"a[b]" = 1', "a[b]: unknown key; allowed here: "),
    ("[nodes.a]\ndsn = 'mysql://x/y'", "nodes.a.dsn: the scheme of a DSN is postgresql://, not mysql://"),
    ('[tables.t]\nroots = ["t"]\nlayout = "hash"\nkey = ["id"]\ntablets = 12', "a hash table needs a power of two"),
    ('[tables.t]\nroots = ["t"]\nlayout = "whole"\nkey = ["id"]', 'key: a table with layout = "whole" is one tablet'),
    ('[tables.t]\nroots = ["t"]\nlayout = "whole"\ntablets = 4', 'tablets: a table with layout = "whole" is one'),
    ('[tables.t]\nroots = ["t"]\nlayout = "hash"', "key: a hash table needs the columns by which it is cut"),
    ('[tables.t]\nroots = []\nlayout = "list"\nkey = ["id"]', "tables.t.roots: must not be empty"),
    ('[tables.t]\nroots = ["t"]\nlayout = "range"\nkey = ["id"]\ngroup = "x"', "there is no group 'x'"),
    ("[placement.dimensions]\nheat = 1.0", "unknown dimension"),
    ('[tablet_balancer_config]\nmin_tablet_size = "30GB"', "must be between min_tablet_size and max_tablet_size"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_each_mistake_is_located(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(write(tmp_path, bundles={"shop": text}))
    assert expected in str(caught.value)
    assert all(mistake.file == str(tmp_path / "bundles" / "shop.toml") for mistake in caught.value.mistakes)


def test_mistakes_of_all_files_come_at_once(tmp_path: Path) -> None:
    bundles = {"a": "mode = 1", "b": 'moed = "observe"', "c": "this is not toml", "d": BUNDLE}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(write(tmp_path, DAEMON + 'tick = "soon"\n', bundles))
    files = [Path(mistake.file).name for mistake in caught.value.mistakes]
    assert files == ["balancer.toml", "a.toml", "b.toml", "c.toml"]


def test_groups_whose_nodes_could_not_tell_them_apart_are_refused(tmp_path: Path) -> None:
    daemon = 'directory = "zk://h:2181/tablets/{}"\n[leadership]\nspread = true\nweight = 0\n'
    settings = load_settings(write(tmp_path, daemon.format("mail/"), {}))
    assert (settings.daemon.leadership.spread, settings.daemon.leadership.weight) == (True, 0.0)
    with pytest.raises(ConfigurationError, match=r"last name has no dot: .* 'shop\.mail' and others as 'shop'"):
        load_settings(write(tmp_path, daemon.format("shop.mail"), {}))


def test_a_wrong_password_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(write(tmp_path, bundles={"shop": "[nodes.a]\ndsn = 'host=x password=hush what is this'"}))
    assert "hush" not in str(caught.value)


def test_a_node_belongs_to_one_bundle(tmp_path: Path) -> None:
    node = "[nodes.pg-a]\ndsn = 'postgresql://pg-a/x'\n"
    with pytest.raises(ConfigurationError, match="the bundle 'a' has a node of this name too"):
        load_settings(write(tmp_path, bundles={"a": node, "b": node}))


def test_an_unknown_bundle_names_the_known_ones(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, bundles={"shop": BUNDLE}))
    with pytest.raises(UserError, match=r"there is no bundle 'shopp'.*there are: shop"):
        settings.bundle("shopp")


def test_a_number_of_tablets_that_was_asked_for_is_also_the_least(tmp_path: Path) -> None:
    plain = BUNDLE.replace("tablets = 64\n", "")
    counts = {}
    for name, text in (("given", BUNDLE), ("plain", plain), ("counted", BUNDLE + "desired_tablet_count = 8\n")):
        bundle = load_settings(write(tmp_path, bundles={"shop": text})).bundle("shop")
        counts[name] = bundle.options.table("orders").min_tablet_count
    assert counts == {"given": 64, "plain": None, "counted": None}


def examples(name: str) -> list[str]:
    """The configurations of a document."""
    return re.findall(r"```toml\n(.*?)```", (Path(__file__).parents[2] / name).read_text(), re.DOTALL)


@pytest.mark.parametrize("document", ["README.md", "docs/concepts.md"])
def test_the_documents_examples_are_right_configurations(tmp_path: Path, document: str) -> None:
    """What a newcomer copies: checked by the program's own `config check`."""
    daemon, bundle = examples(document)
    [events] = examples("docs/tables.md")
    [rules] = examples("docs/policies.md")
    (tmp_path / "bundles").mkdir()
    (tmp_path / "balancer.toml").write_text(daemon)
    (tmp_path / "bundles" / "shop.toml").write_text(bundle)
    (tmp_path / "bundles" / "ruled.toml").write_text(RULED + rules)
    (tmp_path / "bundles" / "timed.toml").write_text("[nodes.t1]\ndsn = 'postgresql://t1/shop'\n" + events)
    checked = balancer_here("config", "check", "--config", tmp_path / "balancer.toml")
    assert (checked.code, checked.err) == (0, "")
    settings = load_settings(tmp_path / "balancer.toml")
    assert settings.daemon.directory.startswith("sqlite://" if document == "README.md" else "zks://")
    assert bool(settings.daemon.directory_security.reader_user) is (document != "README.md")
