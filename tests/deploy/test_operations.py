"""docs/operations.md: each alert has its runbook, and what it names is there."""

import re

from deploy.expressions import rules
from rose_gateway.settings import GatewaySettings, variable
from rose_producer import ProducerSettings
from rose_worker.settings import WorkerSettings
from tests.deploy.files import ROOT, services

PAGE = (ROOT / "docs" / "operations.md").read_text()


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    assert {f"alert-{rule['alert'].lower()}" for rule in rules("alert")} == {
        anchor for anchor in anchors(PAGE) if anchor.startswith("alert-")
    }


def test_the_settings_that_it_names_exist() -> None:
    fields = WorkerSettings.model_fields | ProducerSettings.model_fields
    known = {f"ROSE_{name.upper()}" for name in fields}
    known |= {variable(name) for name in GatewaySettings.model_fields}
    assert set(re.findall(r"ROSE_[A-Z_]+", PAGE)) <= known


def test_the_services_and_passwords_that_it_names_exist() -> None:
    profiles = {p for service in services().values() for p in service.get("profiles", [])}
    assert set(re.findall(r"--profile (\w+)", PAGE)) == profiles
    compose = (ROOT / "docker-compose.yml").read_text()
    for name in re.findall(r"[A-Z]+_PASSWORD", PAGE):
        assert f"${{{name}:-" in compose
    assert "local-only-producer@" in PAGE
    assert services()["redis"]["environment"]["PRODUCER_PASSWORD"] == "local-only-producer"
