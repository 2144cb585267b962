"""The demonstration's story: the configuration, the tables, the rows and the load that make a cluster lopsided.

Two nodes have just been added to a cluster of one. All vbuckets of `orders` are on the first node, and so is the whole
of `events`, which grows at its end and is read most in its newest quarter. Sizes are small, so that everything happens
within minutes. The same things happen in every run, though not at the same times: the newest quarter of `events` does
half as much again as a tablet may, each half of it clearly less, and everything else is made of pieces that three nodes
can share.
"""

from collections.abc import Mapping

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
