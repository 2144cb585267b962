"""Capacities and rules in a bundle's file: what is read, and each contradiction in one sentence."""

from pathlib import Path

import pytest

from balancer.policies.options import GB, Apart, PlacementRule
from balancer.settings import ConfigurationError, load_settings
from tests.support.commands import balancer_here

pytestmark = pytest.mark.quick

BUNDLE = """
[nodes.pg-a]
dsn = "postgresql://pg-a/shop"
zone = "eu"
capacity = { write_rate = 5000, read_rate = 2e4, memory = "8GB", disk = "1TB" }

[nodes.pg-b]
dsn = "postgresql://pg-b/shop"
zone = "us"

[tables.orders]
roots = ["orders"]
layout = "range"
key = ["region", "id"]

[tables.users]
roots = ["users"]
layout = "hash"
key = ["id"]
"""
EU = """
[[rules]]
name = "eu"
tables = ["orders"]
key = ["EU"]
zones = ["eu"]
"""


def load(folder: Path, text: str) -> Path:
    (folder / "bundles").mkdir(exist_ok=True)
    (folder / "bundles" / "shop.toml").write_text(BUNDLE + text)
    (folder / "balancer.toml").write_text('directory = "sqlite:///var/lib/balancer/directory.db"\n')
    return folder / "balancer.toml"


def test_capacities_and_rules_are_read(tmp_path: Path) -> None:
    text = EU + '[[rules]]\nname = "apart"\ntables = ["users", "orders"]\nspread = "tables"\n'
    bundle = load_settings(load(tmp_path, text)).bundle("shop")
    node = bundle.nodes["pg-a"]
    assert (node.write_rate, node.read_rate, node.memory, node.disk) == (5000.0, 2e4, 8 * GB, 1024 * GB)
    assert bundle.nodes["pg-b"].write_rate is None
    assert bundle.options.rules == (
        PlacementRule("eu", ("orders",), key=("EU",), zones=("eu",)),
        PlacementRule("apart", ("users", "orders"), spread=Apart.TABLES),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[rules]]\ntables = ["orders"]\nzones = ["eu"]\n', "rules.0.name: every rule needs a name"),
        (EU + EU, "rules.eu.name: another rule has this name too"),
        (
            EU.replace('"orders"', '"order"'),
            "rules.eu.tables: there is no table 'order' in this file; there are: orders",
        ),
        (
            EU.replace('["eu"]', '["eurpoe"]'),
            "rules.eu.zones: there is no zone 'eurpoe' in this file; there are: eu, us",
        ),
        (
            EU + 'not_nodes = ["pg-c"]\n',
            "rules.eu.not_nodes: there is no node 'pg-c' in this file; there are: pg-a, pg-b",
        ),
        (EU + 'not_zones = ["eu"]\n', "rules.eu.zones: eu is in not_zones, too"),
        (EU + 'not_nodes = ["pg-a"]\n', "rules.eu: leaves no node for table orders"),
        (EU.replace('zones = ["eu"]', ""), "rules.eu: the rule does nothing; give it zones"),
        (EU + 'keys_from = ["EV"]\n', "rules.eu.key: cannot be combined with keys_from and keys_to"),
        (EU.replace('"orders"', '"users"'), "rules.eu.key: users is a hash table, which has no ranges of keys"),
        (EU + 'spread = "tablets"\ntogether = true\n', "rules.eu.spread: contradicts together"),
        (EU + 'spread = "tables"\n', 'rules.eu.spread: with "tables" the rule must name two tables or more'),
        (EU + 'spread = "racks"\n', "rules.0.spread: must be 'tablets' or 'tables'"),
        (EU + "zone = 5\n", "rules.0.zone: unknown key; did you mean 'zones'?"),
        (
            EU + '[[rules]]\nname = "us"\ntables = ["orders"]\nzones = ["us"]\n',
            "rules.us: leaves no node for table orders together with rule eu",
        ),
        (
            EU.replace('"orders"]', '"orders", "users"]').replace('key = ["EU"]', 'spread = "tables"')
            + '[[rules]]\nname = "pair"\ntables = ["users", "orders"]\ntogether = true\n',
            "rules.eu.spread: contradicts rule pair, which keeps them together",
        ),
        (
            EU + '[tables.more]\nroots = ["m"]\nlayout = "hash"\nkey = ["id"]\nzones = ["us"]\n'
            '[[rules]]\nname = "more"\ntables = ["more"]\nnodes = ["pg-a"]\n',
            "rules.more: leaves no node for table more, which lives in the zones us",
        ),
        (
            '[nodes.pg-c]\ndsn = "postgresql://pg-c/shop"\ndisk = "1TB"\ncapacity = { disk = "2TB" }\n',
            "nodes.pg-c: disk and capacity.disk are both given: set only one",
        ),
        (
            '[nodes.pg-c]\ndsn = "postgresql://pg-c/shop"\ncapacity = { write_rate = -1 }\n',
            "nodes.pg-c.capacity.write_rate: must be greater than 0",
        ),
    ],
)
def test_each_contradiction_is_one_sentence(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(load(tmp_path, text))
    (mistake,) = caught.value.mistakes
    assert expected in str(mistake)


def test_config_check_refuses_a_contradiction(tmp_path: Path) -> None:
    file = load(tmp_path, EU + 'not_nodes = ["pg-a"]\n')
    shown = balancer_here("config", "check", "--config", str(file))
    assert shown.code == 2
    assert "rules.eu: leaves no node for table orders" in shown.err + shown.out
    file = load(tmp_path, EU)
    assert balancer_here("config", "check", "--config", str(file)).code == 0
