"""The demonstration's story: the configuration, the tables, the rows and the load that make a cluster lopsided.

Two nodes have just been added to a cluster of one. All vbuckets of `orders` are on the first node, and so is the whole
of `events`, which grows at its end and is read most in its newest quarter. Sizes are small, so that everything happens
within minutes. The same things happen in every run, though not at the same times: the newest quarter of `events` does
half as much again as a tablet may, each half of it clearly less, and everything else is made of pieces that three nodes
can share.

Sets the stage: servers, configuration files, tables and rows. Done once per folder; later runs find it as it was.
"""

from collections.abc import Mapping
from pathlib import Path

from balancer.directory.configured import open_configured, records_of
from balancer.directory.contract import Directory
from balancer.embedded.cluster import EmbeddedCluster
from balancer.embedded.process import free_port
from balancer.features.tables.adopt import request_of
from balancer.features.tables.create import create
from balancer.naming import cluster_name
from balancer.nodes.session.addresses import connected
from balancer.nodes.session.connection import Connection, Timeouts, translated
from balancer.settings import BundleSettings, Mode, Settings, load_settings

CLUSTER = "demo"
BUNDLE = "demo"
FIRST_NODE = "pg-a"
DATABASE = "postgres"
CUSTOMERS = 3_000
ORDERS = 60_000
EVENTS = 80_000
VBUCKETS = 16
EVENT_CUTS = (10_001, 20_001, 30_001, 40_001, 50_001, 60_001)
NEWEST = range(EVENT_CUTS[-1], EVENTS + 1)
"""The events that everybody reads and marks: the last of the seven tablets."""

RECENT_ROWS = 11
"""Events that one look at the newest reads."""
LOOKS_PER_SECOND = 20.0
MARKS_PER_SECOND = 20.0
"""Of the newest events. As much of the writes as of the reads: a node with few orders and many events has its share of
both. With six a second and four tablets of events the cluster was at a score of 87 and not balanced after 270 seconds,
although the planner brings a model of that load, with even and steady rates, to 91."""
HOT_ROWS_PER_SECOND = 180
"""More than this is too hot: the newest events are used some 260 times a second, and no half of them so often."""

ORDERS_DEFINITION = """
CREATE TABLE public.orders (
    customer_id bigint NOT NULL,
    order_id bigint NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now(),
    amount numeric(12, 2) NOT NULL,
    note text,
    PRIMARY KEY (customer_id, order_id)
) PARTITION BY HASH (customer_id);
"""

EVENTS_DEFINITION = """
CREATE TABLE public.events (
    event_id bigint PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    body text NOT NULL
) PARTITION BY RANGE (event_id);
"""

FILL_ORDERS = f"""
INSERT INTO public.orders (customer_id, order_id, amount, note)
SELECT 1 + (n * 7919) % {CUSTOMERS}, -n, n % 1000, repeat(md5(n::text), 8) FROM generate_series(1, {ORDERS}) AS n
"""  # noqa: S608 - our own numbers

FILL_EVENTS = f"""
INSERT INTO public.events (event_id, body)
SELECT n, repeat(md5(n::text), 6) FROM generate_series(1, {EVENTS}) AS n
"""  # noqa: S608 - our own numbers


def daemon_file(directory: str, http_port: int) -> str:
    """`balancer.toml` of the demonstration."""
    return f"""\
directory = "{directory}"
instance = "demo"
tick = "2s"

[http]
listen = "127.0.0.1:{http_port}"
"""


def bundle_file(addresses: Mapping[str, tuple[int, str]], mode: str) -> str:
    """`bundles/demo.toml`: node → port and the file of its password."""
    nodes = "\n".join(
        f"""\
[nodes.{node}]
dsn = "postgresql://postgres@127.0.0.1:{port}/{DATABASE}"
password_file = "{password_file}"
"""
        for node, (port, password_file) in addresses.items()
    )
    return f"""\
mode = "{mode}"

[tablet_balancer_config]
min_tablet_size = "1MB"
desired_tablet_size = "16MB"
max_tablet_size = "48MB"
enable_cell_balancer = true

[heat]
max_rows_per_second = {HOT_ROWS_PER_SECOND}
max_node_share = 1.0
polls_to_confirm = 3
min_samples = 30

[migration]
moves_per_node = 2
moves_total = 4
cool_down = "10s"
retire_grace = "1s"
# A machine that does something else beside the demonstration may need these; others switch within milliseconds.
write_pause_budget = "1s"
lock_timeout = "400ms"
retry_back_off_limit = "1s"

{nodes}
[tables.orders]
roots = ["public.orders"]
layout = "hash"
key = ["customer_id"]
tablets = {VBUCKETS}

[tables.events]
roots = ["public.events"]
layout = "range"
key = ["event_id"]
tablets = {len(EVENT_CUTS) + 1}
"""


SPLITS = {"orders": (), "events": EVENT_CUTS}
DEFINITIONS = {"orders": ORDERS_DEFINITION, "events": EVENTS_DEFINITION}
FILLINGS = {"orders": (FILL_ORDERS,), "events": (FILL_EVENTS,)}


def write_configuration(cluster: EmbeddedCluster, mode: Mode) -> Settings:
    """The files of the demonstration, with the ports that the servers have now."""
    folder = cluster.folder / "config"
    (folder / "bundles").mkdir(parents=True, exist_ok=True)
    directory = f"sqlite://{cluster.folder}/{CLUSTER}.db"
    if cluster.zookeeper is not None:
        directory = f"zk://{cluster.zookeeper.address}/{CLUSTER}"
    (folder / "balancer.toml").write_text(daemon_file(directory, free_port(8080)))
    write_bundle(cluster, mode)
    return load_settings(folder / "balancer.toml")


def write_bundle(cluster: EmbeddedCluster, mode: Mode) -> None:
    """The bundle's file, as an operator changes it: a running daemon finds either the old or the new one."""
    addresses = {
        name: (server.port or 0, str(server.folder / "password")) for name, server in sorted(cluster.nodes.items())
    }
    file = cluster.folder / "config" / "bundles" / f"{BUNDLE}.toml"
    fresh = file.with_suffix(".new")
    fresh.write_text(bundle_file(addresses, mode))
    fresh.rename(file)


def write_passfile(cluster: EmbeddedCluster) -> Path:
    """The nodes' passwords as libpq reads them, for the application's side."""
    path = cluster.folder / "passfile"
    lines = [f"127.0.0.1:{server.port}:*:postgres:{server.password()}\n" for server in cluster.nodes.values()]
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text("".join(lines))
    return path


def set_tables(settings: Settings) -> bool:
    """Makes and fills the tables, all of them on the first node; False if they are there from an earlier run."""
    bundle = settings.bundle(BUNDLE)
    with open_configured(settings.daemon, create=True) as directory:
        if directory.snapshot().tables:
            return False
        with connected(bundle, "demo", Timeouts(statement=120.0)) as nodes:
            for name in DEFINITIONS:
                _create(name, bundle, directory, nodes, settings)
                with translated(FIRST_NODE):
                    for statement in FILLINGS[name]:
                        nodes[FIRST_NODE].execute(statement)
                    nodes[FIRST_NODE].execute("ANALYZE")
    return True


def _create(
    name: str, bundle: BundleSettings, directory: Directory, nodes: dict[str, Connection], settings: Settings
) -> None:
    shape = bundle.tables[name]
    # The daemon records the other nodes, as it does all new ones; here only the first exists.
    first = [record for record in records_of(bundle) if record.id == FIRST_NODE]
    create(
        request_of(bundle, name, "demo"),
        directory,
        nodes,
        first,
        cluster_name(settings.daemon.directory),
        tablets=shape.tablets,
        splits=SPLITS[name],
        definition=DEFINITIONS[name],
    )
