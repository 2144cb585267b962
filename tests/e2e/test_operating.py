"""An operator's day with a real instance: approve a plan, drain a node, change the configuration, use the API."""

import json
import signal
from pathlib import Path

from tests.support.commands import balancer
from tests.support.fleet import CLIENT, TOKEN, Fleet, Process, owners, running, until


def state(process: Process) -> dict[str, str]:
    """The bundle as `/v1/status` tells it."""
    found: dict[str, str] = process.get("/v1/status").json()["bundles"][0]
    return found


def test_a_plan_waits_for_approval_and_is_then_carried_out(fleet: Fleet) -> None:
    fleet.write("approve")
    fleet.create(["a"], rows=500)
    with running(fleet.config) as process, fleet.directory() as directory:
        until(lambda: proposed(process), 60, "a plan")
        plan = proposed(process)
        assert owners(directory.snapshot()) == {"a": 8, "b": 0, "c": 0}
        assert not directory.snapshot().migrations
        answer = balancer("apply", plan, "--config", fleet.config, "--output", "json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["result"] == f"plan {plan} is approved and starts when the schedule allows it"
        until(lambda: directory.snapshot().migrations, 30, "the first migration")
        actions = len(directory.snapshot().plans[plan].document["actions"])
        until(lambda: finished(fleet) == actions, 60, "the end of the plan")
        assert directory.snapshot().plans[plan].state == "done"
        assert 8 - owners(directory.snapshot())["a"] == actions, "what was not approved did not happen"
        again = balancer("apply", plan, "--config", fleet.config)
        assert (again.code, again.err.strip().endswith(f"plan {plan} is done, not proposed")) == (4, True)


def proposed(process: Process) -> str:
    sentence = state(process).get("sentence", "") if process.get("/v1/status").json()["bundles"] else ""
    return sentence.rpartition("balancer apply ")[2] if "waits for approval" in sentence else ""


def finished(fleet: Fleet) -> int:
    with fleet.directory() as directory:
        return sum(record.finished for record in directory.snapshot().migrations.values())


def test_drain_empties_a_node_and_says_when_it_may_be_taken_away(fleet: Fleet) -> None:
    fleet.write("autonomous")
    fleet.create(["a"], rows=500)
    with running(fleet.config) as process, fleet.directory() as directory:
        until(lambda: "nothing to do" in state_sentence(process), 90, "the balance")
        answer = balancer("drain", "b", "--reason", "new disk", "--config", fleet.config)
        assert answer.code == 0, answer.err
        assert "node b is draining" in answer.out
        until(lambda: "may be removed" in state_sentence(process), 90, "the emptying")
        assert state_sentence(process) == "nothing to do; node b is empty and may be removed"
        assert owners(directory.snapshot())["b"] == 0
        fleet.write("autonomous", nodes=["a", "c"])
        until(lambda: sorted(directory.snapshot().nodes) == ["a", "c"], 30, "the node's leaving")


def state_sentence(process: Process) -> str:
    bundles = process.get("/v1/status").json()["bundles"]
    return str(bundles[0].get("sentence", "")) if bundles else ""


def test_the_configuration_is_read_again_on_a_signal_and_on_a_swap_and_a_wrong_one_is_not_used(fleet: Fleet) -> None:
    fleet.write("observe")
    fleet.create(["a"])
    failed = "balancer_configuration_reload_failed"

    def mode(word: str) -> bool:
        return process.metric(f'balancer_bundle_mode{{bundle="shop",mode="{word}"}}') == 1.0

    with running(fleet.config) as process:
        until(lambda: mode("observe"), 30, "the first tick")
        assert process.metric(failed) == 0.0
        fleet.write("approve")  # a rename, as editors do it
        until(lambda: mode("approve"), 30, "a reload")
        fleet.write("autonomuos")
        until(lambda: process.metric(failed) == 1.0, 30, "the alert")
        assert mode("approve"), "the last good configuration stays"
        read_at = process.metric("balancer_configuration_timestamp_seconds")
        swap(fleet.folder, "observe")
        until(lambda: mode("observe"), 30, "a reload after a swap")
        assert process.metric(failed) == 0.0
        process.send(signal.SIGHUP)
        until(lambda: process.metric("balancer_configuration_timestamp_seconds") != read_at, 30, "a reload on SIGHUP")
        assert process.stop() == 0


def swap(folder: Path, mode: str) -> None:
    """As Kubernetes does it: the folder behind a symbolic link is another one at once."""
    text = (folder / "bundles" / "shop.toml").read_text().replace("autonomuos", mode)
    (folder / "bundles").rename(folder / "v1")
    (folder / "v2").mkdir()
    (folder / "v2" / "shop.toml").write_text(text)
    (folder / "fresh").symlink_to("v2")
    (folder / "fresh").rename(folder / "bundles")


def test_changes_over_http_need_the_token(fleet: Fleet) -> None:
    fleet.write("observe")
    fleet.create(["a"])
    wish = {"verb": "pause", "bundle": "shop"}
    with running(fleet.config) as process, fleet.directory() as directory:
        until(process.leads, 30, "an election")
        url = f"{process.url}/v1/commands?wait=20"
        refused = CLIENT.post(url, json=wish)
        assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")
        assert not directory.snapshot().commands
        accepted = CLIENT.post(url, json=wish, headers={"Authorization": f"Bearer {TOKEN}"})
        assert (accepted.status_code, accepted.json()["state"]) == (200, "done")
        assert "shop" in directory.snapshot().pauses
        assert process.metric('balancer_commands_total{result="done",verb="pause"}') == 1.0
