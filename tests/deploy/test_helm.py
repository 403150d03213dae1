"""The Helm chart, rendered by helm: valid, unprivileged, and of one mind with the programs."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.manifests import CHART, PLAIN_VALUES, find_program, plain_manifests, render
from docs.reference import chart_values
from rose.protocol import Partition
from rose_cli.local.broker import find_redis_server, free_port
from rose_gateway.settings import GatewaySettings
from rose_gateway.settings import variable as gateway_variable
from rose_producer import Client
from rose_worker.settings import WorkerSettings
from tests.deploy.manifests import FOLDER, follows_schema, read_variables, worker_variable
from tests.support.bench import wait_until

pytestmark = pytest.mark.skipif(
    find_program("helm") is None, reason="needs helm: make .venv/bin/helm"
)

WITH_REDIS = "redis.enabled=true,scaling.enabled=true"
EVERYTHING = (
    f"{WITH_REDIS},monitoring.enabled=true,ingress.enabled=true,worker.partitions=2,worker.gpus=1,"
    "worker.cache.size=50Gi,worker.cache.accessMode=ReadWriteMany,gateway.filesClaim=files,"
    "worker.secrets={hub},gateway.secrets={s3},gateway.queues={default,gpu},redis.storageClass=local,"
    "worker.settings.ROSE_MODEL=org/model,gateway.storage=s3://bucket/prefix,"
    "worker.pod.nodeSelector.disk=ssd,gateway.pod.priorityClassName=high,"
    "worker.serviceAccountAnnotations.a=b,gateway.serviceAccountAnnotations.role=s3,"
    "ingress.annotations.issuer=ours"
)
VALUES = ("", WITH_REDIS, EVERYTHING, "gateway.enabled=false,networkPolicy.enabled=false")


def rendered(values: str = "", **more: Any) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(render("--set", values, **more)) if one]


def find(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def pods(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield document["spec"]["template"]["spec"]


def pod(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [one for one in pods(documents) if one["serviceAccountName"] == name]
    return found


def test_lint_has_nothing_to_say() -> None:
    helm = find_program("helm")
    assert helm is not None
    for values in VALUES:
        words = [helm, "lint", "--strict", CHART, "--set", values]
        ended = subprocess.run(words, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("values", VALUES)
def test_every_manifest_follows_its_schema(values: str) -> None:
    documents = rendered(values)
    assert len(documents) > 4
    for document in documents:
        follows_schema(document)


def test_the_plain_manifests_are_the_chart_s() -> None:
    for path, text in plain_manifests().items():
        assert path.read_text() == text, f"{path.name}: run make manifests"
    documents = list(yaml.safe_load_all(render("--values", str(PLAIN_VALUES))))
    for app in ("worker", "gateway"):
        settings = find(documents, "ConfigMap", f"rose-{app}")["data"]
        assert read_variables(FOLDER / f"{app}.env") == settings


def test_every_value_is_described_and_every_description_has_a_value() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def described(part: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, one in part["properties"].items():
            if "description" in one:
                yield prefix + name
            elif "properties" in one:
                yield from described(one, f"{prefix}{name}.")

    assert {name for name, _, _ in chart_values(defaults, schema)} == set(described(schema))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("worker.replica=2", "replica"),
        ("worker.partitions=0", "partitions"),
        ("worker.queue=a b", "queue"),
        ("worker.settings.ROSE_REDIS_URL=redis://worker:secret@host", "ROSE_REDIS_URL"),
        ("gateway.settings.ROSE_GATEWAY_SEAL_KEYS=secret", "ROSE_GATEWAY_SEAL_KEYS"),
        ("gateway.settings.AWS_SECRET_ACCESS_KEY=secret", "AWS_SECRET_ACCESS_KEY"),
        ("externalRedis.address=redis://redis.example:6379", "address"),
    ],
)
def test_a_wrong_value_and_a_secret_are_refused(values: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rendered(values)


@pytest.mark.parametrize("values", VALUES)
def test_nothing_is_privileged_and_nothing_is_written_outside_of_volumes(values: str) -> None:
    found = list(pods(rendered(values)))
    assert found
    for one in found:
        assert one["securityContext"]["runAsNonRoot"] is True
        assert one["securityContext"]["runAsUser"] > 0
        assert one["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert one["automountServiceAccountToken"] is False
        assert one["enableServiceLinks"] is False
        for container in one["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert {"livenessProbe", "readinessProbe"} <= container.keys()


@pytest.mark.parametrize("values", VALUES)
def test_secrets_are_named_and_never_made(values: str) -> None:
    documents = rendered(values)
    assert "Secret" not in {document["kind"] for document in documents}
    for one in pods(documents):
        for variable in one["containers"][0].get("env", []):
            if "PASSWORD" in variable["name"]:
                assert variable.keys() == {"name", "valueFrom"}
    text = yaml.dump(documents)
    assert ("rose-redis-passwords" in text) == ("redis.enabled" in values)


@pytest.mark.parametrize("values", ["", EVERYTHING])
def test_the_programs_take_their_settings(values: str) -> None:
    documents = rendered(values)
    fields = {worker_variable(name): name for name in WorkerSettings.model_fields}
    given = find(documents, "ConfigMap", "rose-worker")["data"]
    worker = WorkerSettings(**{fields[name]: value for name, value in given.items()})
    fields = {gateway_variable(name): name for name in GatewaySettings.model_fields}
    given = find(documents, "ConfigMap", "rose-gateway")["data"]
    gateway = GatewaySettings(**{fields[name]: value for name, value in given.items()})
    assert gateway.partitions == worker.partitions
    assert worker.queue in gateway.queues.split(",")
    grace_s = pod(documents, "rose-worker")["terminationGracePeriodSeconds"]
    assert grace_s >= worker.grace_s + 30 + 5 + 5


def test_the_scaler_watches_every_partition() -> None:
    documents = rendered(EVERYTHING)
    scaled = find(documents, "ScaledObject", "rose-worker")["spec"]
    partitions = [Partition("default", index) for index in range(2)]
    given = [trigger["metadata"] for trigger in scaled["triggers"]]
    streams = [keys["stream"] for keys in given if "stream" in keys]
    assert streams == [stream for partition in partitions for stream in partition.all_streams]
    names = [trigger["name"] for trigger in scaled["triggers"]]
    assert len(set(names)) == len(names) == 10
    assert scaled["advanced"]["scalingModifiers"]["formula"].split(" + ") == names
    assert {keys["enableTLS"] for keys in given} == {"false"}
    assert {keys["address"] for keys in given} == {"rose-redis.roseinfer.svc:6379"}
    assert "replicas" not in find(documents, "Deployment", "rose-worker")["spec"]
    assert find(rendered(), "Deployment", "rose-worker")["spec"]["replicas"] == 1


@pytest.mark.parametrize("largest", [1024, 200_000_000, 1_000_000_001])
def test_the_ingress_lets_through_what_the_gateway_takes(largest: int) -> None:
    documents = rendered(f"ingress.enabled=true,gateway.maxFileBytes={largest}")
    notes = find(documents, "Ingress", "rose-gateway")["metadata"]["annotations"]
    size = notes["nginx.ingress.kubernetes.io/proxy-body-size"]
    settings = find(documents, "ConfigMap", "rose-gateway")["data"]
    taken = [int(settings[f"ROSE_GATEWAY_MAX_{one}_BYTES"]) for one in ("FILE", "BODY")]
    assert taken == [largest, 4 * 1024 * 1024]
    assert 0 < (int(size.removesuffix("m")) << 20) - max(taken) <= 17 << 20


def test_egress_is_names_redis_and_the_storage_s_port() -> None:
    documents = rendered(
        "externalRedis.address=r.example:6380,networkPolicy.egressPorts={443,9000}"
    )
    for app in ("rose-worker", "rose-gateway"):
        rules = find(documents, "NetworkPolicy", app)["spec"]["egress"]
        assert {port["port"] for rule in rules for port in rule["ports"]} == {53, 6380, 443, 9000}
    documents = rendered(f"{WITH_REDIS},networkPolicy.egressPorts=null")
    for app in ("rose-worker", "rose-gateway"):
        _, to_redis = find(documents, "NetworkPolicy", app)["spec"]["egress"]
        (peer,) = to_redis["to"]
        labels = find(documents, "StatefulSet", "rose-redis")["spec"]["template"]["metadata"][
            "labels"
        ]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert find(documents, "NetworkPolicy", "rose-redis")["spec"]["egress"] == []


def test_models_are_kept_in_a_claim_that_outlives_the_release() -> None:
    documents = rendered(EVERYTHING)
    claim = find(documents, "PersistentVolumeClaim", "rose-worker-cache")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    worker = pod(documents, "rose-worker")
    volumes = {volume["name"]: volume for volume in worker["volumes"]}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "rose-worker-cache"}
    assert {"name": "cache", "mountPath": "/cache"} in worker["containers"][0]["volumeMounts"]


def test_a_change_of_settings_starts_new_pods() -> None:
    def checksum(values: str) -> str:
        template = find(rendered(values), "Deployment", "rose-worker")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/configuration"])

    assert checksum("") != checksum("worker.settings.ROSE_MODEL=other")


def test_two_releases_share_a_namespace() -> None:
    one, other = (
        {(d["kind"], d["metadata"]["name"]) for d in rendered(EVERYTHING, release=release)}
        for release in ("rose", "gpu")
    )
    assert not one & other


@pytest.mark.skipif(find_redis_server() is None, reason="needs a real redis-server on PATH")
def test_redis_starts_as_the_chart_says_and_workers_and_gateways_get_in(tmp_path: Path) -> None:
    # given: the container's files, command and passwords, in folders of this machine
    documents = rendered(WITH_REDIS)
    for name, text in find(documents, "ConfigMap", "rose-redis")["data"].items():
        (tmp_path / name).write_text(text)
    container = pod(documents, "rose-redis")["containers"][0]
    port = free_port()
    command = container["command"][-1].replace("/etc/rose", str(tmp_path))
    command = command.replace("/tmp/users.acl", f"{tmp_path}/filled.acl")
    command = command.replace("--dir /data", f"--dir {tmp_path} --port {port}")
    users = ("PRODUCER", "WORKER", "GATEWAY", "SCALER", "OPERATOR")
    passwords = {f"{user}_PASSWORD": f"{user.lower()}-password-of-16" for user in users}
    with subprocess.Popen(
        ["/bin/sh", "-c", command], env={"PATH": os.environ["PATH"], **passwords}
    ) as server:
        try:
            probe = container["readinessProbe"]["exec"]["command"][-1].replace(
                "redis-cli", f"redis-cli -p {port}"
            )
            ready = ["/bin/sh", "-c", probe]
            wait_until(lambda: subprocess.run(ready, env=os.environ | passwords).returncode == 0)
            # when
            for app in ("worker", "gateway"):
                variables = pod(documents, f"rose-{app}")["containers"][0]["env"]
                given = {variable["name"]: variable for variable in variables}
                source = given["REDIS_PASSWORD"]["valueFrom"]["secretKeyRef"]
                url = given["ROSE_REDIS_URL"]["value"]
                url = url.replace("$(REDIS_PASSWORD)", passwords[source["key"]])
                url = url.replace("rose-redis.roseinfer.svc:6379", f"127.0.0.1:{port}")
                # then
                with Client(redis_url=url) as client:
                    assert client.queue_status().running == 0
        finally:
            server.terminate()
