"""The compose file and the Dockerfile: valid, and as careful as they claim."""

import json
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rose_gateway.settings import GatewaySettings
from rose_gateway.settings import variable as gateway_variable
from rose_worker.settings import WorkerSettings
from tests.deploy.files import DOCKERFILE, ROOT, image, seconds, services

COMPOSE = (["docker", "compose"], ["docker-compose"])
WORKERS = ("worker", "worker-gpu", "worker-vllm")


def test_the_compose_file_follows_the_specification() -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    jsonschema.validate(stack, json.loads(schema.read_text()))


def test_compose_itself_reads_it() -> None:
    # given
    words = next((words for words in COMPOSE if answers(words)), None)
    if words is None:
        pytest.skip("needs docker-compose (Debian: apt-get install docker-compose)")
    # when
    asked = [*words, *("--profile", "load", "--profile", "gpu", "--profile", "vllm"), "config"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    # then
    assert shown.returncode == 0, shown.stderr
    assert set(yaml.safe_load(shown.stdout)["services"]) == set(services())


def answers(words: list[str]) -> bool:
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run([*words, "version"], capture_output=True).returncode == 0


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("needs hadolint")
    linted = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_nothing_listens_beyond_loopback_and_nothing_is_privileged() -> None:
    for name, service in services().items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not {"privileged", "network_mode", "cap_add"} & set(service), name


def test_scratch_is_where_every_image_lets_all_write() -> None:
    """runc before 1.1.8 forgets the options of a tmpfs when a container starts again."""
    for name, service in services().items():
        assert set(service.get("tmpfs", [])) <= {"/tmp"}, name
    assert "> /tmp/users.acl" in services()["redis"]["command"][-1]


def test_what_is_mounted_is_there() -> None:
    for service in services().values():
        for source in (volume.partition(":")[0] for volume in service.get("volumes", [])):
            assert not source.startswith(".") or (ROOT / source).exists(), source


def test_every_image_has_a_version() -> None:
    for name, service in services().items():
        if "build" not in service:
            assert re.search(r":v?\d+\.\d+", service["image"]), name


def test_a_worker_has_time_to_drain() -> None:
    for name in WORKERS:
        service = services()[name]
        grace_s = float(service["environment"]["ROSE_GRACE_S"])
        # A last step, the last tokens, and Redis' timeout.
        assert seconds(service["stop_grace_period"]) >= grace_s + 30 + 5 + 5


def test_workers_are_given_settings_that_they_know() -> None:
    known = {f"ROSE_{name.upper()}" for name in WorkerSettings.model_fields}
    images = [{"environment": image(target)["env"]} for target in ("worker", "vllm")]
    for given in (*(services()[name] for name in WORKERS), *images):
        assert {name for name in given["environment"] if name.startswith("ROSE_")} <= known


def test_the_gateway_is_given_settings_that_it_knows() -> None:
    known = {gateway_variable(name) for name in GatewaySettings.model_fields}
    for given in (services()["gateway"], {"environment": image("gateway")["env"]}):
        assert {name for name in given["environment"] if name.startswith("ROSE_")} <= known


def test_the_gateway_has_a_port_a_user_and_time_of_its_own() -> None:
    service, fields = services()["gateway"], GatewaySettings.model_fields
    # Open only because nobody reaches it from elsewhere.
    assert service["environment"]["ROSE_GATEWAY_OPEN"] == "true"
    (published,) = service["ports"]
    assert published == f"127.0.0.1:{fields['port'].default}:{fields['port'].default}"
    assert "redis://gateway:" in service["environment"]["ROSE_REDIS_URL"]
    assert "/readyz" in service["healthcheck"]["test"][-1]
    assert seconds(service["stop_grace_period"]) >= fields["grace_s"].default + 5


def test_models_do_not_share_a_queue() -> None:
    queues = [services()[name]["environment"].get("ROSE_QUEUE", "default") for name in WORKERS]
    assert len(set(queues)) == len(WORKERS)


def test_vllm_computes_on_as_many_gpus_as_it_is_told() -> None:
    arguments = services()["worker-vllm"]["environment"]["ROSE_VLLM_ARGS"].split()
    assert arguments == ["--tensor-parallel-size", "1"]
    assert image("vllm")["env"]["ROSE_ENGINE"] == "vllm"


@pytest.mark.parametrize("name", ["worker-gpu", "worker-vllm"])
def test_the_gpus_of_a_service_are_no_variable(name: str) -> None:
    """Compose 1.29, which Debian 12 has, ends with a traceback at one, whatever is brought up."""
    (device,) = services()[name]["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == "all" or isinstance(device["count"], int)


def scraped() -> dict[str, Any]:
    """Prometheus' jobs by name."""
    prometheus = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    return {job["job_name"]: job for job in prometheus["scrape_configs"]}


def test_prometheus_looks_where_the_workers_and_gateways_are() -> None:
    ports = {
        "worker": WorkerSettings.model_fields["http_port"].default,
        "gateway": GatewaySettings.model_fields["port"].default,
    }
    assert scraped().keys() == {f"rose-{service}" for service in ports}
    for service, port in ports.items():
        (discovery,) = scraped()[f"rose-{service}"]["dns_sd_configs"]
        assert discovery == {"names": [service], "type": "A", "port": port}
        assert service in services()
    for name in WORKERS[1:]:
        assert services()[name]["networks"]["default"]["aliases"] == ["worker"]


def test_the_image_runs_as_nobody_in_particular() -> None:
    last, triton = without_stage(DOCKERFILE.read_text().split(" AS runtime\n")[1], "vllm")
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["10001:10001"]
    # Where Triton compiles, g++ was put in as root.
    assert re.findall(r"^USER (.*)$", triton, re.MULTILINE) == ["0:0", "10001:10001"]
    for tool in ("gcc", "g++", "make", "build-essential"):
        assert tool not in last


def without_stage(text: str, name: str) -> tuple[str, str]:
    """The other stages, and that one."""
    before, _, rest = text.partition(f" AS {name}\n")
    stage, _, after = rest.partition("\nFROM ")
    return before + after, stage


def test_the_image_of_the_gateway_has_no_torch() -> None:
    environment = DOCKERFILE.read_text().split(" AS env-gateway\n")[1].partition("\nFROM ")[0]
    assert "[gateway,s3]" in environment
    assert "torch" not in environment


def test_no_container_leaves_a_nameless_volume_or_an_endless_log() -> None:
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert not re.search(r"^VOLUME", DOCKERFILE.read_text(), re.MULTILINE)
    for name, service in stack["services"].items():
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source.startswith("./") or source in stack["volumes"], name


def test_prometheus_has_every_folder_that_its_configuration_names() -> None:
    folder = ROOT / "deploy" / "prometheus"
    patterns = yaml.safe_load((folder / "prometheus.yml").read_text())["rule_files"]
    for job in scraped().values():
        (files,) = job["file_sd_configs"]
        # As shipped none: one that is not there would be down.
        (targets,) = (folder / pattern for pattern in files["files"])
        (file,) = targets.parent.glob(targets.name)
        assert yaml.safe_load(file.read_text()) == []
        patterns += files["files"]
    mounted = {v.split(":")[1] for v in services()["prometheus"]["volumes"]}
    for pattern in patterns:
        assert f"/etc/prometheus/{Path(pattern).parts[0]}" in mounted


def test_an_init_is_pid_1() -> None:
    """To PID 1 no signal comes that it has no handler for, and Python has none at first."""
    for target in ("worker", "gateway"):
        assert image(target)["init"] == ["tini"]
        assert image(target)["entrypoint"] == ["rose"]
        assert image(target)["cmd"] == [target]
