"""The manifests that a person applies: valid by the published schemas, closed by default, and agreeing with one another
and with us. They are put together as kustomize does it; `make manifests` compares that with the real one."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from balancer.api.access import read_needs_token
from balancer.directory.configured import credentials
from balancer.settings import load_settings
from tests.support.commands import balancer_here
from tests.support.kustomize import DEPLOY, GENERATED, KUBERNETES, MONITORING, OVERLAYS, build

pytestmark = pytest.mark.quick

OPERATORS = ("PrometheusRule", "ServiceMonitor")  # kinds of the Prometheus operator: no schema comes with Kubernetes
DOCUMENTS = build(KUBERNETES / "overlays" / "example")


def load(kind: str, name: str = "tablet-balancer") -> Any:
    (only,) = [one for one in DOCUMENTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return only


def pod() -> Any:
    return load("Deployment")["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def test_every_manifest_is_valid(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("kubernetes-validate")
    files = []
    for number, document in enumerate(one for one in DOCUMENTS if one["kind"] not in OPERATORS):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(document))
    done = subprocess.run([program, "--strict", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == len(files)


def test_a_wrong_manifest_would_be_noticed(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("kubernetes-validate")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(load("Deployment")).replace("runAsNonRoot: true", "runAsNobody: true"))
    done = subprocess.run([program, "--strict", wrong], capture_output=True, text=True, check=False)
    assert done.returncode != 0


def test_a_group_has_its_own_namespace_directory_and_instances_named_after_hosts(tmp_path: Path) -> None:
    documents = {(one["kind"], one["metadata"]["name"]): one for one in build(KUBERNETES / "overlays" / "group")}
    assert {one["metadata"].get("namespace", name) for (_, name), one in documents.items()} == {"tablet-balancer-mail"}
    spec = documents["Deployment", "tablet-balancer"]["spec"]
    (balancer,) = spec["template"]["spec"]["containers"]
    (variable,) = [one for one in balancer["env"] if one["name"] == "BALANCER_INSTANCE"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert spec["replicas"] == 3
    ours, others = (
        tomllib.loads(one["data"]["balancer.toml"])
        for one in (documents["ConfigMap", "tablet-balancer"], load("ConfigMap"))
    )
    assert ours["leadership"] == {"spread": True}
    assert ours["directory"].rpartition("/")[0] == others["directory"].rpartition("/")[0]
    assert ours["directory"] != others["directory"]
    assert "tablet-balancer.tablet-balancer-mail.svc" in ours["http"]["allowed_hosts"]
    files = [tmp_path / f"{number}.yaml" for number in range(len(documents))]
    for file, document in zip(files, documents.values(), strict=True):
        file.write_text(yaml.safe_dump(document))
    program = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run([program, "--strict", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_kinds_are_there() -> None:
    assert [(one["kind"]) for one in sorted(DOCUMENTS, key=lambda one: str(one["kind"]))] == [
        *("ConfigMap", "ConfigMap", "ConfigMap", "Deployment", "Namespace", "NetworkPolicy", "PodDisruptionBudget"),
        *("PrometheusRule", "Service", "ServiceAccount", "ServiceMonitor"),
    ]


def test_every_file_is_used() -> None:
    """A manifest that no kustomization names would be applied by nobody."""
    used = {path.resolve() for folder in KUBERNETES.rglob("kustomization.yaml") for path in named(folder)}
    there = {path.resolve() for path in KUBERNETES.rglob("*") if path.is_file() and path.name != "kustomization.yaml"}
    assert there - used == set()


def named(kustomization: Path) -> list[Path]:
    said = yaml.safe_load(kustomization.read_text())
    names = [*said["resources"], *(patch["path"] for patch in said.get("patches", ()))]
    names += [file for one in said.get("configMapGenerator", ()) for file in one["files"]]
    return [kustomization.parent / name for name in names]


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_rules_and_dashboard_are_those_of_their_sources(name: str) -> None:
    assert (MONITORING / name).read_text() == GENERATED[name](), "run `make manifests`"


def test_the_operators_rules_and_the_dashboard_say_what_their_sources_say() -> None:
    assert load("PrometheusRule")["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    (shown,) = load("ConfigMap", "tablet-balancer-dashboard")["data"].values()
    assert json.loads(shown) == json.loads((DEPLOY / "grafana" / "tablet-balancer.json").read_text())
    assert len(shown) < 250_000, "kubectl apply keeps a copy in an annotation, of 256 kB at most"


def test_a_new_bundle_is_one_file(tmp_path: Path) -> None:
    """And its line; nothing in the base names a bundle or a node."""
    folder = tmp_path / "overlays" / "ours"
    for name in ("base", "monitoring"):
        shutil.copytree(KUBERNETES / name, tmp_path / name)
    shutil.copytree(OVERLAYS[0], folder)
    (folder / "bundles" / "mail.toml").write_text('[nodes.pg-m]\ndsn = "postgresql://balancer@pg-m/mail"\n')
    said = (folder / "kustomization.yaml").read_text()
    line = "      - bundles/shop.toml\n"
    (folder / "kustomization.yaml").write_text(said.replace(line, line + line.replace("shop", "mail")))
    (bundles,) = [one for one in build(folder) if one["metadata"]["name"] == "tablet-balancer-bundles"]
    assert sorted(bundles["data"]) == ["mail.toml", "shop.toml"]
    others = [one for one in build(folder) if one != bundles]
    assert others == [one for one in DOCUMENTS if one["metadata"]["name"] != "tablet-balancer-bundles"]
    base = "".join(file.read_text() for file in (KUBERNETES / "base").glob("*.yaml"))
    assert not re.search(r"shop|pg-a", base)


def test_two_instances_and_always_one_left() -> None:
    assert load("Deployment")["spec"]["replicas"] == 2
    assert load("PodDisruptionBudget")["spec"]["minAvailable"] == 1


def test_the_pod_is_of_the_restricted_profile() -> None:
    """The rules of https://kubernetes.io/docs/concepts/security/pod-security-standards, one after the other."""
    assert load("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
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
    policy = load("NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    for rule in policy["ingress"]:
        assert rule["from"], "empty: everybody"
        assert all(peer.get("podSelector", {}).get("matchLabels") for peer in rule["from"])
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 2281, 5432, 6432}, "names, ZooKeeper through TLS, PostgreSQL, PgBouncer"
    names = next(rule for rule in policy["egress"] if rule["ports"][0]["port"] == 53)
    assert names["to"][0]["namespaceSelector"]["matchLabels"]


def test_everything_is_in_the_namespace() -> None:
    name = load("Namespace")["metadata"]["name"]
    others = [one for one in DOCUMENTS if one["kind"] != "Namespace"]
    assert {one["metadata"]["namespace"] for one in others} == {name}
    hosts = tomllib.loads(load("ConfigMap")["data"]["balancer.toml"])["http"]["allowed_hosts"]
    assert f"{load('Service')['metadata']['name']}.{name}.svc" in hosts


def test_no_manifest_has_a_secret_in_it_not_even_a_placeholder() -> None:
    kinds = {one["kind"] for one in DOCUMENTS}
    assert "Secret" not in kinds, "the operator makes them: without them no pod starts"
    config = tomllib.loads(load("ConfigMap")["data"]["balancer.toml"])
    assert "token" not in config["http"]
    assert not {"password", "reader_password"} & config["directory_security"].keys()
    assert not [variable for variable in container()["env"] if "secretKeyRef" in variable["valueFrom"]]


def test_probes_ask_for_health_and_readiness() -> None:
    paths = {name: container()[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_every_selector_finds_the_pods() -> None:
    labels = load("Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = (
        load("Deployment")["spec"]["selector"]["matchLabels"],
        load("Service")["spec"]["selector"],
        load("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        load("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    )
    assert all(selector.items() <= labels.items() for selector in selectors)


def test_the_monitor_finds_the_services_port_and_our_metrics() -> None:
    monitor, service = load("ServiceMonitor"), load("Service")
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
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == set(volumes)
    for name in ("config", "bundles"):
        source = volumes[name]["configMap"]
        assert source.keys() == {"name"}, "as a whole"
        assert load("ConfigMap", source["name"])["data"]
    text = (KUBERNETES / "base" / "deployment.yaml").read_text()
    for name in ("secrets", "nodes"):
        secret = volumes[name]["secret"]
        assert secret["defaultMode"] == 0o440
        assert secret.keys() == {"secretName", "defaultMode"}, "as a whole"
        assert f"create secret generic {secret['secretName']} " in text


def secret_files() -> set[str]:
    """The keys of the secret that the comment on top of the deployment lets an operator make."""
    text = (KUBERNETES / "base" / "deployment.yaml").read_text()
    return {name for name in re.findall(r"--from-file=(\S+)", text) if not name.endswith("/")}


def test_what_the_pod_mounts_is_a_right_configuration(tmp_path: Path) -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    files = {
        "config": load("ConfigMap")["data"],
        "bundles": load("ConfigMap", "tablet-balancer-bundles")["data"],
        "secrets": {name: f"given-by-kubernetes-as-{name}" for name in secret_files()},
        "nodes": {name: f"given-by-kubernetes-as-{name}" for name in ("pg-a", "pg-b")},
    }
    by_place = {mounts[volume]: volume for volume in files}
    places = re.compile(rf"({'|'.join(by_place)})(?=[/\"])")
    for volume, contents in files.items():
        (tmp_path / volume).mkdir()
        for name, text in contents.items():
            (tmp_path / volume / name).write_text(places.sub(lambda match: str(tmp_path / by_place[match[1]]), text))
    secrets = tmp_path / "secrets"
    config = tmp_path / "config" / "balancer.toml"
    env = {variable["name"]: "given-by-kubernetes" for variable in container()["env"]}
    checked = balancer_here("config", "check", "--config", config, env=env)
    assert (checked.code, checked.err) == (0, "")
    settings = load_settings(config)
    passwords = [node.password for node in settings.bundle("shop").nodes.values()]
    assert [one.get_secret_value() for one in passwords if one] == [
        "given-by-kubernetes-as-pg-a",
        "given-by-kubernetes-as-pg-b",
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


def test_the_image_is_the_overlays() -> None:
    assert container()["image"] == "registry.example/tablet-balancer"


def test_the_container_is_built_from_what_exists() -> None:
    root = DEPLOY.parent
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
