"""The Kubernetes manifests: valid, unprivileged, and of one mind with the programs' settings."""

import subprocess
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from deploy.manifests import find_program
from rose.protocol.scripts import load
from rose_gateway.settings import GatewaySettings
from rose_gateway.settings import variable as gateway_variable
from rose_worker.settings import WorkerSettings
from tests.deploy.files import DOCKERFILE
from tests.deploy.manifests import (
    FOLDER,
    counts_all_jobs,
    example_secrets,
    follows_schema,
    manifest,
    manifests,
    read_variables,
    worker_variable,
)

APPS = ("rose-worker", "rose-gateway")
SETTINGS: dict[str, type[BaseSettings]] = {
    "rose-worker": WorkerSettings,
    "rose-gateway": GatewaySettings,
}


def environment(app: str) -> dict[str, str]:
    return read_variables(FOLDER / f"{app.removeprefix('rose-')}.env")


def variables(app: str) -> dict[str, str]:
    """The field that each sets."""
    name = gateway_variable if app == "rose-gateway" else worker_variable
    return {name(field): field for field in SETTINGS[app].model_fields}


def settings(app: str) -> Any:
    """As the program reads what the pod is given."""
    given = {variables(app)[name]: value for name, value in environment(app).items()}
    return SETTINGS[app](**given)


def pod(app: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest("Deployment", app)["spec"]["template"]["spec"]
    return found


def container(app: str) -> dict[str, Any]:
    (found,) = pod(app)["containers"]
    return found


def test_every_manifest_follows_its_schema() -> None:
    documents = [*manifests(), *example_secrets().values()]
    assert len(documents) == 21
    for document in documents:
        follows_schema(document)


def test_kustomize_puts_it_together() -> None:
    kubectl = find_program("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl: make .venv/bin/helm")
    built = subprocess.run([kubectl, "kustomize", FOLDER], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    documents = list(yaml.safe_load_all(built.stdout))
    assert {d["metadata"].get("namespace", "roseinfer") for d in documents} == {"roseinfer"}
    configs = {d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"}
    deployments = [d for d in documents if d["kind"] == "Deployment"]
    ours = [d["spec"]["template"]["spec"]["containers"][0] for d in deployments]
    assert {one["envFrom"][0]["configMapRef"]["name"] for one in ours} == configs
    assert {one["image"] for one in ours} == {"roseinfer:cpu", "roseinfer:gateway"}
    for document in documents:
        follows_schema(document)


@pytest.mark.parametrize("app", APPS)
def test_the_settings_are_settings_with_values_that_the_program_takes(app: str) -> None:
    named = [*environment(app), *(one["name"] for one in container(app).get("env", []))]
    (secret,) = [one["secretRef"] for one in container(app)["envFrom"] if "secretRef" in one]
    named += example_secrets()[secret["name"]]["stringData"]
    assert set(named) <= variables(app).keys()
    assert settings(app)


def test_ports_are_those_of_the_settings() -> None:
    assert (
        settings("rose-worker").http_port == container("rose-worker")["ports"][0]["containerPort"]
    )
    gateway = settings("rose-gateway").port
    assert gateway == container("rose-gateway")["ports"][0]["containerPort"]
    for app, port in (("rose-worker", 9400), ("rose-gateway", gateway)):
        rule = manifest("NetworkPolicy", app)["spec"]["ingress"][0]
        assert [one["port"] for one in rule["ports"]] == [port]


@pytest.mark.parametrize("app", APPS)
def test_no_variables_come_from_services(app: str) -> None:
    """Kubernetes would add ROSE_WORKER_SERVICE_HOST, which is refused as misspelt."""
    assert pod(app)["enableServiceLinks"] is False


def test_a_worker_has_time_to_drain() -> None:
    grace_s = settings("rose-worker").grace_s
    assert pod("rose-worker")["terminationGracePeriodSeconds"] >= grace_s + 30 + 5 + 5


def test_a_gateway_has_time_to_end_its_streams() -> None:
    _, pause_s = container("rose-gateway")["lifecycle"]["preStop"]["exec"]["command"]
    grace_s = settings("rose-gateway").grace_s
    assert pod("rose-gateway")["terminationGracePeriodSeconds"] >= float(pause_s) + grace_s + 5


@pytest.mark.parametrize("app", APPS)
def test_probes_ask_for_what_they_are_meant_for(app: str) -> None:
    paths = {
        probe: container(app)[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        if probe in container(app)
    }
    # Liveness never asks Redis.
    assert paths.pop("startupProbe", "/healthz") == "/healthz"
    assert paths == {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@pytest.mark.parametrize("app", APPS)
def test_nothing_is_privileged(app: str) -> None:
    assert pod(app)["securityContext"]["runAsNonRoot"] is True
    assert f"USER {pod(app)['securityContext']['runAsUser']}:" in DOCKERFILE.read_text()
    assert pod(app)["automountServiceAccountToken"] is False
    assert container(app)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("app", APPS)
def test_a_disruption_takes_one_pod_at_a_time(app: str) -> None:
    assert manifest("PodDisruptionBudget", app)["spec"]["maxUnavailable"] == 1
    strategy = manifest("Deployment", app)["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize("app", APPS)
def test_selectors_find_the_pods(app: str) -> None:
    labels = manifest("Deployment", app)["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/name": app}
    for kind in ("Deployment", "PodDisruptionBudget", "ServiceMonitor"):
        assert manifest(kind, app)["spec"]["selector"]["matchLabels"] == labels, kind
    assert manifest("NetworkPolicy", app)["spec"]["podSelector"]["matchLabels"] == labels
    service = manifest("Service", app)["spec"]
    assert service["selector"] == labels
    (endpoint,) = manifest("ServiceMonitor", app)["spec"]["endpoints"]
    assert endpoint["port"] == service["ports"][0]["name"] == container(app)["ports"][0]["name"]


def test_the_scaler_watches_the_streams_of_the_queue() -> None:
    scaled = manifest("ScaledObject", "rose-worker")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "rose-worker"
    counts_all_jobs(scaled, settings("rose-worker"))
    # A stream's length is what waits and runs only because the end of a job takes its entry away.
    ends = load("append").source
    assert "acknowledge(" in ends
    assert "XDEL" in ends


def test_gateways_are_scaled_by_their_open_streams() -> None:
    scaled = manifest("HorizontalPodAutoscaler", "rose-gateway")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "rose-gateway"
    assert scaled["minReplicas"] >= 2
    (pods,) = [one["pods"] for one in scaled["metrics"] if one["type"] == "Pods"]
    assert pods["metric"]["name"] == "rose_gateway_open_streams"
    assert "replicas" not in manifest("Deployment", "rose-gateway")["spec"]


def test_the_ingress_does_not_buffer_and_shows_the_api_alone() -> None:
    ingress = manifest("Ingress", "rose-gateway")
    notes = ingress["metadata"]["annotations"]
    assert notes["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert notes["nginx.ingress.kubernetes.io/proxy-next-upstream"] == "off"
    size = notes["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert int(size.removesuffix("m")) << 20 > settings("rose-gateway").max_file_bytes
    assert ingress["spec"]["rules"][0]["host"] in settings("rose-gateway").allowed_hosts.split(",")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/v1", "Prefix")
    assert path["backend"]["service"]["name"] == "rose-gateway"
    assert [rule["host"]] == ingress["spec"]["tls"][0]["hosts"]


def test_a_gateway_may_reach_the_object_store_of_its_files() -> None:
    policy = manifest("NetworkPolicy", "rose-gateway")["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 6379, 443}
