"""What `kubectl kustomize` makes of the folders in deploy/kubernetes, as far as they use it; and their generated files.

The suite runs where there is no kubectl, so the manifests that a person applies are assembled here. Anything in a
kustomization that this does not know is an error. `make manifests` writes the generated files and compares every
document with those of a real `kubectl kustomize`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MONITORING = KUBERNETES / "monitoring"
OVERLAYS = sorted(path.parent for path in (KUBERNETES / "overlays").glob("*/kustomization.yaml"))
KNOWN = {
    *("apiVersion", "kind", "namespace", "resources", "images", "configMapGenerator", "generatorOptions", "patches"),
}
NAME = "tablet-balancer"

Document = dict[str, Any]


def build(folder: Path) -> list[Document]:
    """Every document of a kustomization, its bases first."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert said.keys() <= KNOWN, f"{folder}: {sorted(said.keys() - KNOWN)} is not known here"
    documents: list[Document] = []
    for name in said["resources"]:
        place = folder / name
        documents += build(place) if place.is_dir() else [yaml.safe_load(_inside(folder, name).read_text())]
    documents += [_config_map(folder, one, said["generatorOptions"]) for one in said.get("configMapGenerator", ())]
    for patch in said.get("patches", ()):
        assert patch.keys() == {"path"}
        _patch(documents, yaml.safe_load(_inside(folder, patch["path"]).read_text()))
    for image in said.get("images", ()):
        _rename(documents, image)
    if "namespace" in said:
        for document in documents:
            key = "name" if document["kind"] == "Namespace" else "namespace"
            document["metadata"][key] = said["namespace"]
    return documents


def _inside(folder: Path, name: str) -> Path:
    """kustomize reads no file outside the folder."""
    file = (folder / name).resolve()
    assert file.is_relative_to(folder.resolve()), f"{name} is outside of {folder}"
    return file


def _config_map(folder: Path, said: Document, options: Document) -> Document:
    assert said.keys() == {"name", "files"}
    assert options.keys() == {"disableNameSuffixHash", "labels"}
    assert options["disableNameSuffixHash"] is True, "a name with a hash would have to be put into the deployment"
    files = [_inside(folder, name) for name in said["files"]]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": said["name"], "labels": dict(options["labels"])},
        "data": {file.name: file.read_text() for file in files},
    }


def _patch(documents: list[Document], patch: Document) -> None:
    def same(document: Document) -> bool:
        return all(document[key] == patch[key] for key in ("apiVersion", "kind")) and (
            document["metadata"]["name"] == patch["metadata"]["name"]
        )

    (target,) = [document for document in documents if same(document)]
    _merge(target, patch)


def _merge(target: Any, patch: Any) -> None:
    """A strategic merge: mappings by key, and lists of named things by name."""
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        elif isinstance(value, list) and isinstance(target.get(key), list):
            for member in value:
                (found,) = [one for one in target[key] if one["name"] == member["name"]]
                _merge(found, member)
        else:
            target[key] = value


def _rename(documents: list[Document], image: Document) -> None:
    assert {"name", "newName"} <= image.keys() <= {"name", "newName", "newTag", "digest"}
    name = image["newName"]
    name += f":{image['newTag']}" if "newTag" in image else f"@{image['digest']}" if "digest" in image else ""
    for document in documents:
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                if container["image"] == image["name"]:
                    container["image"] = name


def _metadata(name: str, **labels: str) -> Document:
    return {"name": name, "labels": {"app.kubernetes.io/name": NAME, **labels}}


def prometheus_rule() -> str:
    """The rules of deploy/prometheus as the Prometheus operator takes them."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(NAME),
        "spec": rules,
    }
    return _written("deploy/prometheus/alerts.yml", document)


def dashboard() -> str:
    """The dashboard of deploy/grafana as a config map for Grafana's sidecar, without the spaces."""
    panels = json.loads((DEPLOY / "grafana" / "tablet-balancer.json").read_text())
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(f"{NAME}-dashboard", grafana_dashboard="1"),
        "data": {f"{NAME}.json": json.dumps(panels, separators=(",", ":"), ensure_ascii=False)},
    }
    return _written("deploy/grafana/tablet-balancer.json", document)


def _written(source: str, document: Document) -> str:
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return f"# Made from {source} by `make manifests`.\n{text}"


GENERATED = {"prometheusrule.yaml": prometheus_rule, "dashboard.yaml": dashboard}


def _key(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def main() -> int:
    for name, make in GENERATED.items():
        (MONITORING / name).write_text(make())
        print(f"wrote deploy/kubernetes/monitoring/{name}")
    for folder in OVERLAYS:
        done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:
            print(f"kubectl kustomize {folder}: {done.stderr}", file=sys.stderr)
            return 1
        real = sorted(yaml.safe_load_all(done.stdout), key=_key)
        ours = sorted(build(folder), key=_key)
        if real != ours:
            different = [_key(one) for one, other in zip(real, ours, strict=False) if one != other]
            print(f"{folder}: kubectl and tests/support/kustomize.py differ in {different}", file=sys.stderr)
            return 1
        print(f"kubectl kustomize {folder.relative_to(DEPLOY.parent)}: {len(real)} documents")
    return 0


if __name__ == "__main__":
    sys.exit(main())
