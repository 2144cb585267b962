"""The manifests: valid by the published schemas, closed by default, and agreeing with one another and with us."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import balancer
from balancer.settings import load_settings

pytestmark = pytest.mark.quick

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
MONITOR = "servicemonitor.yaml"  # a kind of the Prometheus operator's: no schema is published with Kubernetes


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def pod() -> Any:
    return load("deployment")["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def test_every_manifest_is_valid() -> None:
    program = Path(sys.executable).with_name("kubernetes-validate")
    files = [file for file in FILES if file.name != MONITOR]
    done = subprocess.run([program, "--strict", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == len(files)


def test_a_wrong_manifest_would_be_noticed(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("kubernetes-validate")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((FOLDER / "deployment.yaml").read_text().replace("runAsNonRoot: true", "runAsNobody: true"))
    done = subprocess.run([program, "--strict", wrong], capture_output=True, text=True, check=False)
    assert done.returncode != 0


def test_all_kinds_are_there() -> None:
    kinds = sorted(yaml.safe_load(file.read_text())["kind"] for file in FILES)
    assert kinds == [
        *("ConfigMap", "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service"),
        *("ServiceAccount", "ServiceMonitor"),
    ]


def test_two_instances_and_always_one_left() -> None:
    assert load("deployment")["spec"]["replicas"] == 2
    assert load("poddisruptionbudget")["spec"]["minAvailable"] == 1


def test_the_pod_may_do_nothing_that_it_need_not() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["automountServiceAccountToken"] is False
    security = container()["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert set(load("networkpolicy")["spec"]["policyTypes"]) == {"Ingress", "Egress"}


def test_probes_ask_for_health_and_readiness() -> None:
    paths = {name: container()[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_every_selector_finds_the_pods() -> None:
    labels = load("deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = (
        load("deployment")["spec"]["selector"]["matchLabels"],
        load("service")["spec"]["selector"],
        load("poddisruptionbudget")["spec"]["selector"]["matchLabels"],
        load("networkpolicy")["spec"]["podSelector"]["matchLabels"],
    )
    assert all(selector.items() <= labels.items() for selector in selectors)


def test_the_monitor_finds_the_services_port_and_our_metrics() -> None:
    monitor, service = load("servicemonitor"), load("service")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    known = {"port", "scheme", "path", "interval", "scrapeTimeout", "tlsConfig", "authorization"}
    assert endpoint.keys() <= known
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == load("secret")["metadata"]["name"]
    assert credentials["key"] in load("secret")["stringData"]


def test_volumes_secrets_and_environment_name_what_exists() -> None:
    maps = {name: load(name)["data"] for name in ("configmap", "bundle-shop")}
    by_name = {load(name)["metadata"]["name"]: set(data) for name, data in maps.items()}
    secrets = {load("secret")["metadata"]["name"]: set(load("secret")["stringData"])}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == set(volumes)
    for source in volumes["config"]["projected"]["sources"]:
        items = {item["key"] for item in source["configMap"]["items"]}
        assert items <= by_name[source["configMap"]["name"]]
    for variable in container()["env"]:
        reference = variable["valueFrom"].get("secretKeyRef")
        assert reference is None or reference["key"] in secrets[reference["name"]]


def test_what_the_pod_mounts_is_a_right_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {load(name)["metadata"]["name"]: load(name)["data"] for name in ("configmap", "bundle-shop")}
    volume = next(volume for volume in pod()["volumes"] if volume["name"] == "config")
    for source in volume["projected"]["sources"]:
        for item in source["configMap"]["items"]:
            file = tmp_path / item["path"]
            file.parent.mkdir(exist_ok=True)
            file.write_text(contents[source["configMap"]["name"]][item["key"]])
    for variable in container()["env"]:
        monkeypatch.setenv(variable["name"], "given-by-kubernetes")
    settings = load_settings(tmp_path / "balancer.toml")
    assert settings.daemon.instance == "given-by-kubernetes"
    password = settings.bundle("shop").nodes["pg-a"].password
    assert password is not None
    assert password.get_secret_value() == "given-by-kubernetes"
    port = settings.daemon.http.listen.rpartition(":")[2]
    assert int(port) == container()["ports"][0]["containerPort"]
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    for path in (settings.daemon.http.token_file, settings.daemon.http.tls_certificate, settings.daemon.http.tls_key):
        assert path is not None
        assert str(path.parent) in mounts


def test_the_image_is_this_version() -> None:
    assert container()["image"] == f"tablet-balancer:{balancer.__version__}"


def test_the_container_is_built_from_what_exists() -> None:
    root = FOLDER.parents[1]
    text = (root / "deploy" / "Containerfile").read_text()
    copied = {
        source
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert not [source for source in copied if not (root / source).exists()]
    assert {file.parent.name for file in root.glob("*/__init__.py")} <= copied
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert 'ENTRYPOINT ["balancer"]' in text
    assert "balancer" in scripts
    assert "\nUSER 65532:65532\n" in text
