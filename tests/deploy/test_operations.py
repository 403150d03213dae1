"""docs/operations.md: each alert has its runbook, and what it names is there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from rose_producer import ProducerSettings
from rose_worker.settings import WorkerSettings
from tests.deploy.files import ROOT, services

PAGE = (ROOT / "docs" / "operations.md").read_text()


def alerts() -> list[dict[str, Any]]:
    found = []
    for path in (ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            found += [rule for rule in group["rules"] if "alert" in rule]
    return found


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    named = {rule["alert"] for rule in alerts()}
    assert len(named) > 5
    assert {f"alert-{name.lower()}" for name in named} == {
        anchor for anchor in anchors(PAGE) if anchor.startswith("alert-")
    }
    for rule in alerts():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page.endswith("docs/operations.md")
        assert anchor == f"alert-{rule['alert'].lower()}"


def test_the_settings_that_it_names_exist() -> None:
    fields = WorkerSettings.model_fields | ProducerSettings.model_fields
    assert set(re.findall(r"ROSE_[A-Z_]+", PAGE)) <= {f"ROSE_{name.upper()}" for name in fields}


def test_the_services_and_passwords_that_it_names_exist() -> None:
    profiles = {p for service in services().values() for p in service.get("profiles", [])}
    assert set(re.findall(r"--profile (\w+)", PAGE)) == profiles
    compose = (ROOT / "docker-compose.yml").read_text()
    for name in re.findall(r"[A-Z]+_PASSWORD", PAGE):
        assert f"${{{name}:-" in compose
    assert "local-only-producer@" in PAGE
    assert services()["redis"]["environment"]["PRODUCER_PASSWORD"] == "local-only-producer"


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)", PAGE))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
