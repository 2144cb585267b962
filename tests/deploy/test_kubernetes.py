"""The manifests: valid by the published schemas, closed by default, and agreeing with one another and with us."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import balancer
from balancer.api.access import read_needs_token
from balancer.directory.configured import credentials
from balancer.settings import load_settings
from tests.support.commands import balancer_here

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
        *("ConfigMap", "ConfigMap", "Deployment", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Service"),
        *("ServiceAccount", "ServiceMonitor"),
    ]


def test_two_instances_and_always_one_left() -> None:
    assert load("deployment")["spec"]["replicas"] == 2
    assert load("poddisruptionbudget")["spec"]["minAvailable"] == 1


def test_the_pod_is_of_the_restricted_profile() -> None:
    """The rules of https://kubernetes.io/docs/concepts/security/pod-security-standards, one after the other."""
    assert load("namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod().keys()
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert {kind for volume in pod()["volumes"] for kind in volume if kind != "name"} <= allowed
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["runAsUser"] > 0
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container()["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not {"privileged", "procMount", "runAsUser", "seLinuxOptions"} & security.keys()
    assert not [port for port in container()["ports"] if "hostPort" in port]


def test_the_pod_may_do_nothing_that_it_need_not() -> None:
    assert pod()["automountServiceAccountToken"] is False
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True


def test_only_those_who_need_it_reach_the_pod_and_it_reaches_only_what_it_needs() -> None:
    policy = load("networkpolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    for rule in policy["ingress"]:
        assert rule["from"], "empty: everybody"
        assert all(peer.get("podSelector", {}).get("matchLabels") for peer in rule["from"])
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 2281, 5432, 6432}, "names, ZooKeeper through TLS, PostgreSQL, PgBouncer"
    names = next(rule for rule in policy["egress"] if rule["ports"][0]["port"] == 53)
    assert names["to"][0]["namespaceSelector"]["matchLabels"]


def test_everything_is_in_the_namespace() -> None:
    name = load("namespace")["metadata"]["name"]
    others = [yaml.safe_load(file.read_text()) for file in FILES if file.name != "namespace.yaml"]
    assert {one["metadata"]["namespace"] for one in others} == {name}
    hosts = tomllib.loads(load("configmap")["data"]["balancer.toml"])["http"]["allowed_hosts"]
    assert f"{load('service')['metadata']['name']}.{name}.svc" in hosts


def test_no_manifest_has_a_secret_in_it_not_even_a_placeholder() -> None:
    for file in FILES:
        document = yaml.safe_load(file.read_text())
        assert document["kind"] != "Secret", "the operator makes them: without them no pod starts"
    config = tomllib.loads(load("configmap")["data"]["balancer.toml"])
    assert "token" not in config["http"]
    assert not {"password", "reader_password"} & config["directory_security"].keys()
    assert not [variable for variable in container()["env"] if "secretKeyRef" in variable["valueFrom"]]


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
    assert credentials["name"] == "tablet-balancer"
    assert credentials["key"] in secret_files()


def test_volumes_name_what_exists() -> None:
    maps = {name: load(name)["data"] for name in ("configmap", "bundle-shop")}
    by_name = {load(name)["metadata"]["name"]: set(data) for name, data in maps.items()}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == set(volumes)
    for source in volumes["config"]["projected"]["sources"]:
        items = {item["key"] for item in source["configMap"]["items"]}
        assert items <= by_name[source["configMap"]["name"]]
    assert volumes["secrets"]["secret"] == {"secretName": "tablet-balancer", "defaultMode": 0o440}, "as a whole"


def secret_files() -> set[str]:
    """The keys of the secret that the comment on top of the deployment lets an operator make."""
    return set(re.findall(r"--from-file=(\S+)", (FOLDER / "deployment.yaml").read_text()))


def test_what_the_pod_mounts_is_a_right_configuration(tmp_path: Path) -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in secret_files():
        (secrets / name).write_text(f"given-by-kubernetes-as-{name}")
    contents = {load(name)["metadata"]["name"]: load(name)["data"] for name in ("configmap", "bundle-shop")}
    volume = next(volume for volume in pod()["volumes"] if volume["name"] == "config")
    for source in volume["projected"]["sources"]:
        for item in source["configMap"]["items"]:
            file = tmp_path / item["path"]
            file.parent.mkdir(exist_ok=True)
            text = contents[source["configMap"]["name"]][item["key"]]
            file.write_text(text.replace(mounts["secrets"], str(secrets)))
    config = tmp_path / "balancer.toml"
    env = {variable["name"]: "given-by-kubernetes" for variable in container()["env"]}
    checked = balancer_here("config", "check", "--config", config, env=env)
    assert (checked.code, checked.err) == (0, "")
    settings = load_settings(config)
    passwords = [node.password for node in settings.bundle("shop").nodes.values()]
    assert [one.get_secret_value() for one in passwords if one] == [
        "given-by-kubernetes-as-password-pg-a",
        "given-by-kubernetes-as-password-pg-b",
    ]
    http = settings.daemon.http
    assert int(http.listen.rpartition(":")[2]) == container()["ports"][0]["containerPort"]
    assert read_needs_token(http)
    assert http.token_file is not None
    assert http.token_file.read_text() == "given-by-kubernetes-as-http-token"
    for path in (http.tls_certificate, http.tls_key):
        assert path is not None
        assert str(path.parent) == mounts["tls"]
    known = credentials(settings.daemon.directory_security)
    assert known.client_options()["auth_data"] == [("digest", "balancer:given-by-kubernetes-as-zookeeper-writer")]
    assert known.reader_password == "given-by-kubernetes-as-zookeeper-reader"
    assert settings.daemon.directory.startswith("zks://")
    assert known.ca == str(secrets / "zookeeper-ca.crt")
    named = set(re.findall(r"secrets/([\w.-]+)", "".join(file.read_text() for file in tmp_path.rglob("*.toml"))))
    assert named == secret_files(), "each is made, and each is used"


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
