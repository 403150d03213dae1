"""What `rose doctor` finds of a Redis server."""

from rose_cli.doctor import server as server_checks
from rose_cli.doctor.findings import Finding, Verdict
from rose_cli.doctor.rights import Role
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import ProducerSettings
from tests.support.redis_users import PASSWORDS


def settings_of(server: EmbeddedBroker, user: str = "admin") -> ProducerSettings:
    url = f"redis://{user}:{PASSWORDS[user]}@127.0.0.1:{server.port}/0"
    return ProducerSettings(redis_url=url, redis_retries=0)


def examined(settings: ProducerSettings, role: Role | None = None) -> dict[str, Finding]:
    findings = list(server_checks.examine(settings, role))
    assert all(bool(f.todo) == (f.verdict is not Verdict.OK) for f in findings)
    assert all("\n" not in f.says + f.todo for f in findings)
    return {finding.check: finding for finding in findings}


def wrong(findings: dict[str, Finding]) -> dict[str, Verdict]:
    return {f.check: f.verdict for f in findings.values() if f.verdict is not Verdict.OK}
