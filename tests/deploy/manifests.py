"""What is in deploy/kubernetes, and what holds of the workers there whatever starts them."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from rose.protocol import Partition
from rose.protocol.scripts import load
from rose_worker.settings import WorkerSettings
from tests.deploy.files import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.34"

#: Field names of the resources that are not Kubernetes' own, as their projects document them.
CUSTOM = {
    "ScaledObject": {
        *("scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval"),
        *("cooldownPeriod", "advanced", "triggers"),
    },
    "TriggerAuthentication": {"secretTargetRef", "configMapTargetRef"},
    "ServiceMonitor": {"selector", "endpoints"},
}


@cache
def manifests() -> list[dict[str, Any]]:
    """As they are in the files."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return list(_documents(kustomization["resources"]))


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = [
        document
        for document in manifests()
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    ]
    return found


def _documents(names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        yield from yaml.safe_load_all((FOLDER / name).read_text())


def example_secrets() -> dict[str, Any]:
    """By name."""
    return {one["metadata"]["name"]: one for one in _documents(["secrets.example.yaml"])}


def read_variables(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def worker_variable(field: str) -> str:
    return f"ROSE_{field.upper()}"


def follows_schema(document: dict[str, Any]) -> None:
    if document["kind"] in CUSTOM:
        assert document["spec"].keys() <= CUSTOM[document["kind"]]
    else:
        kubernetes_validate.validate(document, VERSION, strict=True)


def counts_all_jobs(scaled: dict[str, Any], settings: WorkerSettings) -> None:
    """A ScaledObject looks at every stream of these workers' queue, and at the tenants that are
    ready; its target is what one of them decodes at once."""
    partitions = [Partition(settings.queue, index) for index in range(settings.partitions)]
    given = [trigger["metadata"] for trigger in scaled["triggers"]]
    streams = [keys["stream"] for keys in given if "stream" in keys]
    assert streams == [stream for partition in partitions for stream in partition.all_streams]
    ready = [keys["listName"] for keys in given if "listName" in keys]
    assert ready == [f"{one.load.removesuffix('load')}shares:ready" for one in partitions]
    source = load("fetch").source
    assert "prefix .. 'shares:'" in source
    assert "shares .. 'ready'" in source
    modifiers = scaled["advanced"]["scalingModifiers"]
    assert modifiers["formula"].split(" + ") == [trigger["name"] for trigger in scaled["triggers"]]
    assert modifiers["target"] == str(settings.max_batch_size)
    assert scaled["minReplicaCount"] == 0
    for trigger in scaled["triggers"]:
        assert manifest("TriggerAuthentication", trigger["authenticationRef"]["name"])
