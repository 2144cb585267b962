"""Rules and dashboard speak of metrics that exist, with labels that they have."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from balancer.instruments import Declaration, Instruments, declared
from balancer.planner.metrics import Reporter
from tests.support.bundle_states import state_of, view_of

pytestmark = pytest.mark.quick

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
TESTS = DEPLOY / "prometheus" / "alerts_test.yml"
DASHBOARD = DEPLOY / "grafana" / "tablet-balancer.json"
SERIES: dict[str, Declaration] = {name: metric for metric in declared() for name in metric.series()}
ADDED = {"instance", "job", "le"}  # by Prometheus itself, and by histograms
NAME = re.compile(r"balancer_\w+")
EQUAL = re.compile(r'(\w+)="([^"]*)"')
SELECTOR = re.compile(r"(balancer_\w+)\{([^}]*)\}")
# Nothing in a sum or a maximum over instances may be missing from the labels that are kept.
GROUPED = re.compile(r"by \(([^)]*)\) \([^()]*?(?:\w+\()?(balancer_\w+)")


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert isinstance(found, list)
    return found


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def expressions() -> list[str]:
    return [*(rule["expr"] for rule in rules()), *dashboard_expressions()]


def test_every_name_is_declared() -> None:
    texts = [*expressions(), DASHBOARD.read_text(), TESTS.read_text()]
    assert {name for text in texts for name in NAME.findall(text)} <= SERIES.keys()


def test_every_label_that_is_selected_or_grouped_by_is_declared() -> None:
    for expression in expressions():
        for name, selector in SELECTOR.findall(expression):
            labels = {match.split("=")[0].rstrip("!").strip() for match in selector.split(", ") if match}
            assert labels <= {*SERIES[name].labels, *ADDED}, expression
        for group, name in GROUPED.findall(expression):
            assert {label.strip() for label in group.split(",")} <= {*SERIES[name].labels, *ADDED}, expression


def test_every_metric_that_tells_of_trouble_has_a_rule() -> None:
    used = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    trouble = {
        *("balancer_leader", "balancer_tick_errors_total", "balancer_node_reachable", "balancer_leftovers"),
        *("balancer_quarantined_tablets", "balancer_configuration_reload_failed", "balancer_node_disagreements"),
        *("balancer_verifications_total", "balancer_directory_age_seconds", "balancer_node_rewound"),
        *("balancer_directory_open", "balancer_check_findings", "balancer_check_overdue_seconds"),
    }
    assert trouble <= used


def test_every_rule_says_what_happened_and_what_to_do_and_is_tested() -> None:
    tested = TESTS.read_text()
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, rule["alert"]
        page = DEPLOY.parent / rule["annotations"]["runbook_url"]
        assert (page.stem, page.is_file()) == (rule["alert"], True)
        assert f"alertname: {rule['alert']}\n" in tested, f"{rule['alert']} never fires in alerts_test.yml"


def test_the_dashboards_queries_are_promql(tmp_path: Path) -> None:
    as_rules = [
        {"record": f"dashboard:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(dashboard_expressions())
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": as_rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_no_panel_is_empty_on_a_quiet_cluster() -> None:
    """Nothing runs, is planned or was moved: every panel still has a series, or says that there is none."""
    instruments = Instruments()
    Reporter(instruments).observe(state_of(view_of({"orders": 4})), ())
    instruments.http_requests.labels("/metrics", "200").inc()
    instruments.directory_commits.labels("committed").observe(0.01)
    served = {
        (sample.name, label, value)
        for metric in instruments.registry.collect()
        for sample in metric.samples
        for label, value in (*sample.labels.items(), ("", ""))
    }
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        expressions = [target["expr"] for target in panel.get("targets", ())]
        assert not expressions or any(_has_data(one, served) for one in expressions), panel["title"]


def _has_data(expression: str, served: set[tuple[str, str, str]]) -> bool:
    if expression.endswith("or vector(0)"):
        return True
    wanted = [(name, *match) for name, selector in SELECTOR.findall(expression) for match in EQUAL.findall(selector)]
    return all((name, "", "") in served for name in NAME.findall(expression)) and all(one in served for one in wanted)


def test_migrations_are_marked_write_pauses_have_a_heat_map_and_the_page_a_link() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    marks = [one["expr"] for one in dashboard["annotations"]["list"]]
    assert {name for one in marks for name in NAME.findall(one)} == {"balancer_migrations_finished_total"}
    heat = [panel for panel in dashboard["panels"] if panel["type"] == "heatmap"]
    assert ["balancer_write_pause_seconds_bucket" in panel["targets"][0]["expr"] for panel in heat] == [True]
    assert [link["url"] for link in dashboard["links"]] == ["${page}/"]
    assert "page" in {one["name"] for one in dashboard["templating"]["list"]}


def test_units_are_base_units() -> None:
    for metric in declared():
        assert not re.search(r"minutes|hours|days|_ms|milliseconds|kilobytes|megabytes", metric.name), metric.name
