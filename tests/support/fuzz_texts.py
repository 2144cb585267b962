"""What the fuzzers begin with: valid configurations, requests and places in a directory, to be corrupted."""

from hypothesis import strategies as st

from tests.support.hostile_input import values

DAEMON = """
directory = "sqlite://{folder}/directory.db"
instance = "host-a"
tick = "10s"
schedule = "hours < 6"
timezone = "Europe/Berlin"
log_level = "info"
[http]
listen = "127.0.0.1:8080"
token_file = "{folder}/token"
allowed_hosts = ["balancer"]
"""
BUNDLE = """
mode = "autonomous"
[tablet_balancer_config]
tablet_balancer_schedule = "hours < 6 && minutes % 20 == 0"
desired_tablet_size = "10GB"
enable_cell_balancer = true
[migration]
mode = "auto"
write_pause_budget = "250ms"
moves_per_node = 1
disk_budget = "1TB"
[nodes.pg-a]
dsn = "postgresql://balancer@pg-a/shop"
password_file = "{folder}/token"
zone = "east"
weight = 1.5
[tables.orders]
roots = ["public.orders", "public.order_items"]
layout = "hash"
key = ["user_id"]
tablets = 64
"""
TOML = st.one_of(
    values,
    st.sampled_from(
        (
            '"\\u0000"',
            '"\\u001b[31m"',
            "1e400",
            "-1",
            "nan",
            "[]",
            "{}",
            "{a = {b = {c = 1}}}",
            "{a=" * 300 + "1" + "}" * 300,
            "[" * 300 + "]" * 300,
            "1979-05-27T07:32:00Z",
            '"1' + "0" * 400 + 'GB"',
            '"99999999999d"',
            '"/dev/full\\u0000"',
            "true",
            '"postgresql://h/d?options=%0Ax"',
            '"host=h\\ndbname=d"',
        )
    ),
)
PATHS = (
    "/v1/status",
    "/v1/overview",
    "/v1/nodes",
    "/v1/tables",
    "/v1/tablets",
    "/v1/tablets/1",
    "/v1/hot",
    "/v1/plans",
    "/v1/schedules",
    "/v1/heatmap",
    "/v1/migrations",
    "/v1/history",
    "/v1/route/orders",
    "/v1/commands",
    "/v1/commands/x",
    "/v1/commands/dry-run",
    "/v1/samples",
    "/v1/checks",
    "/v1/access",
    "/v1/cluster",
    "/v1/series",
    "/v1/explain/tablets/1",
    "/v1/explain/nodes/pg-a",
    "/v1/why-not/1",
    "/metrics",
    "/healthz",
    "/readyz",
    "/",
)
PARAMETERS = (
    "key",
    "table",
    "limit",
    "node",
    "bundle",
    "wait",
    "columns",
    "rows",
    "metric",
    "version",
    "cursor",
    "at",
    "day",
    "which",
    "actions",
    "steps",
)
WISH = {"verb": "move", "tablet": 1, "node": "pg-b", "author": "ann"}
SAMPLES = {"table": "orders", "reporter": "c1", "seconds": 5.0, "samples": [{"key": [1], "weight": 1.0, "write": True}]}
PLACES = {
    "root": "UPDATE root SET data = ?",
    "bundle": "UPDATE record SET data = ? WHERE kind = 'bundle'",
    "node": "UPDATE record SET data = ? WHERE kind = 'node' AND key = 'pg-a'",
    "table": "UPDATE record SET data = ? WHERE kind = 'table' AND key = '1'",
    "counter": "UPDATE record SET data = ? WHERE kind = 'counter'",
    "page": "UPDATE page SET data = ? WHERE number = (SELECT min(number) FROM page)",
    "log": "UPDATE log SET data = ?",
    "note": "INSERT INTO note VALUES ('progress', 'x', ?)",
}
READERS = (("status",), ("tablets",), ("history",), ("directory", "export"), ("route", "orders", "1"))
