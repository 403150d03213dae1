"""The Kubernetes manifests: valid, unprivileged, and of one mind with the worker's settings."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rose.protocol import Partition
from rose.protocol.scripts import load
from rose_worker.settings import WorkerSettings
from tests.deploy.files import DOCKERFILE, ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.34"

#: Field names of the resources that are not Kubernetes' own, as their projects document them.
CUSTOM = {
    "ScaledObject": {
        *("scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval"),
        *("cooldownPeriod", "advanced", "triggers"),
    },
    "TriggerAuthentication": {"secretTargetRef"},
    "ServiceMonitor": {"selector", "endpoints"},
}


@cache
def manifests() -> dict[str, Any]:
    """By kind, as they are in the files."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return {document["kind"]: document for document in _documents(kustomization["resources"])}


def _documents(names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        yield from yaml.safe_load_all((FOLDER / name).read_text())


def environment() -> dict[str, str]:
    lines = (FOLDER / "worker.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def pod() -> dict[str, Any]:
    found: dict[str, Any] = manifests()["Deployment"]["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return found


def test_every_manifest_follows_its_schema() -> None:
    documents = [*manifests().values(), *_documents(["secrets.example.yaml"])]
    assert len(documents) == 11
    for document in documents:
        if document["kind"] in CUSTOM:
            assert document["spec"].keys() <= CUSTOM[document["kind"]]
        else:
            kubernetes_validate.validate(document, VERSION, strict=True)


def test_kustomize_puts_it_together() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    built = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    documents = list(yaml.safe_load_all(built.stdout))
    assert {d["metadata"].get("namespace", "roseinfer") for d in documents} == {"roseinfer"}
    (config,) = [d for d in documents if d["kind"] == "ConfigMap"]
    (deployment,) = [d for d in documents if d["kind"] == "Deployment"]
    ours = deployment["spec"]["template"]["spec"]["containers"][0]
    assert ours["envFrom"][0]["configMapRef"]["name"] == config["metadata"]["name"]
    assert ours["image"] == "roseinfer:cpu"
    for document in documents:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_settings_are_settings_with_values_that_the_worker_takes() -> None:
    fields = {f"ROSE_{name.upper()}": name for name in WorkerSettings.model_fields}
    named = [*environment(), *(variable["name"] for variable in container()["env"])]
    (secret, _) = _documents(["secrets.example.yaml"])
    named += secret["stringData"]
    assert set(named) <= fields.keys()
    settings = WorkerSettings(
        **{fields[name]: yaml.safe_load(value) for name, value in environment().items()}
    )
    assert settings.http_port == container()["ports"][0]["containerPort"]


def test_no_variables_come_from_services() -> None:
    """Kubernetes would add ROSE_WORKER_SERVICE_HOST, which the worker refuses as misspelt."""
    assert pod()["enableServiceLinks"] is False


def test_a_worker_has_time_to_drain() -> None:
    settings = WorkerSettings(grace_s=float(environment()["ROSE_GRACE_S"]))
    assert pod()["terminationGracePeriodSeconds"] >= settings.grace_s + 30 + 5 + 5


def test_probes_ask_for_what_they_are_meant_for() -> None:
    paths = {
        probe: container()[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    # Liveness never asks Redis.
    assert paths == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }


def test_nothing_is_privileged() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert f"USER {pod()['securityContext']['runAsUser']}:" in DOCKERFILE.read_text()
    assert pod()["automountServiceAccountToken"] is False
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_disruption_takes_one_worker_at_a_time() -> None:
    assert manifests()["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert manifests()["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_selectors_find_the_pods() -> None:
    labels = manifests()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget", "ServiceMonitor"):
        assert manifests()[kind]["spec"]["selector"]["matchLabels"] == labels, kind
    assert manifests()["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert manifests()["Service"]["spec"]["selector"] == labels
    assert manifests()["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == "metrics"


def test_the_scaler_watches_the_streams_of_the_queue() -> None:
    scaled = manifests()["ScaledObject"]["spec"]
    assert scaled["minReplicaCount"] == 0
    assert scaled["scaleTargetRef"]["name"] == manifests()["Deployment"]["metadata"]["name"]
    given = environment()
    partitions = [Partition(given["ROSE_QUEUE"], i) for i in range(int(given["ROSE_PARTITIONS"]))]
    streams = [trigger["metadata"]["stream"] for trigger in scaled["triggers"]]
    assert streams == [stream for partition in partitions for stream in partition.all_jobs]
    modifiers = scaled["advanced"]["scalingModifiers"]
    assert modifiers["formula"].split(" + ") == [trigger["name"] for trigger in scaled["triggers"]]
    assert modifiers["target"] == given["ROSE_MAX_BATCH_SIZE"]
    # Its length is what waits and runs only because the end of a job takes its entry away.
    ends = load("append").source
    assert "acknowledge(" in ends
    assert "XDEL" in ends
    reference = scaled["triggers"][0]["authenticationRef"]["name"]
    assert reference == manifests()["TriggerAuthentication"]["metadata"]["name"]
