"""deploy/kubernetes/vllm: a model over several nodes, as groups of pods."""

import shlex
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from rose_worker.settings import WorkerSettings
from tests.deploy.manifests import (
    FOLDER,
    VERSION,
    counts_all_jobs,
    example_secrets,
    follows_schema,
    manifest,
    read_variables,
    worker_variable,
)

HERE = FOLDER / "vllm"
ROLES = ("leader", "worker")


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


#: What is LeaderWorkerSet's own, by its API reference (v1); pod templates are Kubernetes'.
GROUPS = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata={"type": "object"},
    spec=closed(
        ["leaderWorkerTemplate"],
        replicas={"type": "integer", "minimum": 0},
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        networkConfig=closed(
            ["subdomainPolicy"], subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}
        ),
        rolloutStrategy=closed(
            ["type"],
            type={"const": "RollingUpdate"},
            rollingUpdateConfiguration=closed(
                [],
                partition={"type": "integer", "minimum": 0},
                maxUnavailable={"type": ["integer", "string"]},
                maxSurge={"type": ["integer", "string"]},
            ),
        ),
        leaderWorkerTemplate=closed(
            ["workerTemplate"],
            size={"type": "integer", "minimum": 1},
            restartPolicy={
                "enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
            },
            leaderTemplate={"type": "object"},
            workerTemplate={"type": "object"},
        ),
    ),
)


@cache
def documents() -> dict[str, Any]:
    """By kind: there is one of each."""
    kustomization = yaml.safe_load((HERE / "kustomization.yaml").read_text())
    files = [(HERE / name).read_text() for name in kustomization["resources"]]
    found = [document for text in files for document in yaml.safe_load_all(text)]
    assert len({document["kind"] for document in found}) == len(found)
    return {document["kind"]: document for document in found}


def groups() -> dict[str, Any]:
    spec: dict[str, Any] = documents()["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return spec


def pod(role: str) -> dict[str, Any]:
    found: dict[str, Any] = groups()[f"{role}Template"]["spec"]
    return found


def container(role: str) -> dict[str, Any]:
    (found,) = pod(role)["containers"]
    return found


@cache
def settings() -> WorkerSettings:
    """As the worker reads what the leader is given."""
    given = read_variables(HERE / "worker.env")
    known = {worker_variable(field): field for field in WorkerSettings.model_fields}
    return WorkerSettings(**{known[name]: value for name, value in given.items()})


def test_every_manifest_follows_its_schema() -> None:
    assert len(documents()) == 7
    for kind, document in documents().items():
        if kind == "LeaderWorkerSet":
            jsonschema.validate(document, GROUPS)
        else:
            follows_schema(document)
    for role in ROLES:
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": role}}
        template["template"] = groups()[f"{role}Template"]
        kubernetes_validate.validate(template, VERSION, strict=True)


def test_the_ranks_have_a_gpu_each() -> None:
    arguments = shlex.split(settings().vllm_args)
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    ranks = int(given["--tensor-parallel-size"]) * int(given["--pipeline-parallel-size"])
    gpus = [int(container(role)["resources"]["limits"]["nvidia.com/gpu"]) for role in ROLES]
    # Tensor parallelism stays within a node.
    assert set(gpus) == {int(given["--tensor-parallel-size"])}
    assert ranks == groups()["size"] * gpus[0]
    assert settings().engine == "vllm"


def test_a_group_ends_together_and_not_before_its_leader_has_drained() -> None:
    assert groups()["restartPolicy"] == "RecreateGroupOnPodRestart"
    grace_s = settings().grace_s + 30 + 5 + 5
    assert all(pod(role)["terminationGracePeriodSeconds"] >= grace_s for role in ROLES)
    # Those that hold ranks wait while the leader answers.
    words = " ".join(container("worker")["lifecycle"]["preStop"]["exec"]["command"])
    assert f"LWS_LEADER_ADDRESS'] + ':{settings().http_port}/healthz'" in words
    assert container("leader")["args"][0].endswith("exec rose worker")


def test_probes_ask_the_leader_and_never_redis_whether_it_lives() -> None:
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    paths = [container("leader")[probe]["httpGet"]["path"] for probe in probes]
    assert paths == ["/healthz", "/healthz", "/readyz"]
    assert not set(probes) & container("worker").keys()
    assert container("leader")["ports"][0]["containerPort"] == settings().http_port


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_privileged(role: str) -> None:
    worker = manifest("Deployment", "rose-worker")["spec"]["template"]["spec"]
    for name in ("securityContext", "automountServiceAccountToken", "enableServiceLinks"):
        assert pod(role)[name] == worker[name], name
    assert container(role)["securityContext"] == worker["containers"][0]["securityContext"]


def test_only_the_leader_knows_redis() -> None:
    sources = [one for one in container("leader")["envFrom"] if "secretRef" in one]
    assert [one["secretRef"]["name"] for one in sources] == ["rose-redis"]
    assert "envFrom" not in container("worker")


@pytest.mark.parametrize("role", ROLES)
def test_ray_asks_for_a_token(role: str) -> None:
    given = {one["name"]: one for one in container(role)["env"]}
    assert given["RAY_AUTH_MODE"]["value"] == "token"
    source = given["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert source["key"] in example_secrets()[source["name"]]["stringData"]


def test_the_ranks_talk_to_nobody_else() -> None:
    """Ray runs what it is sent."""
    own = {"podSelector": documents()["NetworkPolicy"]["spec"]["podSelector"]}
    within, metrics = documents()["NetworkPolicy"]["spec"]["ingress"]
    assert within == {"from": [own]}
    assert [one["port"] for one in metrics["ports"]] == [settings().http_port]
    for role in ROLES:
        labels = groups()[f"{role}Template"]["metadata"]["labels"]
        assert own["podSelector"]["matchLabels"].items() <= labels.items()
    selector = documents()["Service"]["spec"]["selector"]
    assert selector == groups()["leaderTemplate"]["metadata"]["labels"]


def test_the_scaler_counts_groups_by_the_streams_of_the_queue() -> None:
    scaled = documents()["ScaledObject"]["spec"]
    target = documents()["LeaderWorkerSet"]
    assert scaled["scaleTargetRef"] == {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "name": target["metadata"]["name"],
    }
    assert "replicas" not in target["spec"]
    counts_all_jobs(scaled, settings())
