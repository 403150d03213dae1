"""GET /v1/jobs: what a caller has asked for lately."""

import os
import time
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from rose import transport
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.access.limits import QueuedJob
from rose_gateway.jobs import job_client
from rose_producer.settings import ProducerSettings
from tests.support.api_keys import bearer, create_key
from tests.support.gateway import Deployment

StartDeployment = Callable[..., Deployment]

BODIES: dict[str, dict[str, Any]] = {
    "responses": {"input": "Tell  me\na story", "max_output_tokens": 16},
    "chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "completions": {"prompt": "x", "max_tokens": 2},
}


class Asker:
    """One caller of a gateway."""

    def __init__(self, deployment: Deployment, secret: str = "") -> None:
        self._url = deployment.url
        self._headers = bearer(secret) if secret else {}

    def ask(self, path: str = "responses", key: str = "", **more: Any) -> str:
        """The id of its job."""
        answer = self.answer(path, key, **more)
        assert answer.status_code == 200, answer.text
        time.sleep(0.002)  # the list is in the order of milliseconds
        return answer.headers["x-rose-job-id"]

    def answer(self, path: str = "responses", key: str = "", **more: Any) -> httpx.Response:
        """`key`: of a request that may come twice."""
        body = {"model": "null", **BODIES[path], **more}
        headers = self._headers | ({"idempotency-key": key} if key else {})
        return httpx.post(f"{self._url}/{path}", json=body, headers=headers, timeout=90)

    def delete(self, job_id: str) -> None:
        url = f"{self._url}/responses/resp_{job_id}"
        assert httpx.delete(url, headers=self._headers, timeout=90).status_code == 200

    def listed(self, query: str = "") -> httpx.Response:
        return httpx.get(f"{self._url}/jobs{query}", headers=self._headers, timeout=90)

    def ids(self, query: str = "") -> list[str]:
        return [job["id"] for job in self.listed(query).json()["data"]]


def test_the_newest_come_first_with_what_was_asked(deployment: Deployment) -> None:
    # given
    asker = Asker(deployment)
    ids = [asker.ask(path) for path in BODIES]
    # when
    answer = asker.listed("?limit=3").json()
    # then
    assert [job["id"] for job in answer["data"]] == ids[::-1]
    assert [job["endpoint"] for job in answer["data"]] == ["completion", "chat", "response"]
    response = answer["data"][-1]
    assert response["title"] == "Tell me a story"
    assert response["choices"][0]["status"] == "finished"
    assert (answer["first_id"], answer["last_id"]) == (ids[-1], ids[0])


def test_a_page_goes_on_after_any_of_them(deployment: Deployment) -> None:
    asker = Asker(deployment)
    ids = [asker.ask() for _ in range(5)][::-1]

    first = asker.listed("?limit=2").json()

    assert ([job["id"] for job in first["data"]], first["has_more"]) == (ids[:2], True)
    assert asker.ids(f"?limit=2&after={ids[1]}") == ids[2:4]
    assert asker.ids(f"?limit=1&after={ids[3]}") == ids[4:]
    last = asker.ids("?limit=100")[-1]
    assert asker.listed(f"?after={last}").json() == {
        "object": "list",
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }
    assert asker.listed("?after=nothing").json()["error"]["param"] == "after"


def test_what_is_gone_or_not_stored_is_not_listed(deployment: Deployment) -> None:
    asker = Asker(deployment)
    before, deleted, kept = asker.ask(), asker.ask(), asker.ask()
    asker.delete(deleted)
    asker.ask(store=False)

    assert asker.ids("?limit=1") == [kept]
    assert asker.ids("?limit=2") == [kept, before]


def test_a_repeat_is_listed_once(deployment: Deployment) -> None:
    asker = Asker(deployment)
    before = asker.ask()
    first = asker.ask(key="once")

    assert asker.ask(key="once") == first
    assert asker.ids("?limit=2") == [first, before]


def test_each_key_has_a_list_of_its_own(start_own_deployment: StartDeployment) -> None:
    # given
    deployment = start_own_deployment()
    mine, other = (Asker(deployment, create_key(deployment)["secret"]) for _ in range(2))
    # when
    job = mine.ask()
    # then
    assert mine.ids() == [job]
    assert other.ids() == []
    assert other.listed(f"?after={job}").status_code == 400


@pytest.mark.parametrize("other", [{}, {"max_output_tokens": 17}], ids=["repeat", "refused"])
def test_a_repeat_leaves_the_earlier_job_where_it_is(
    start_own_deployment: StartDeployment, other: dict[str, Any]
) -> None:
    # given
    deployment = start_own_deployment()
    asker = Asker(deployment, create_key(deployment)["secret"])
    earlier, later = asker.ask(key="once"), asker.ask()
    # when
    again = asker.answer(key="once", **other)
    # then
    assert again.status_code == (409 if other else 200)
    assert asker.ids() == [later, earlier]


async def test_the_oldest_go(monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker) -> None:
    # given
    monkeypatch.setattr(job_client, "MAX_JOBS", 3)
    redis = transport.AsyncRedisClient(ProducerSettings(redis_url=broker.url))
    ours, owner = job_client.History(redis), f"owner-{os.getpid()}"
    # when
    for number in range(5):
        await ours.add(owner, QueuedJob("q", str(number)))
    # then
    assert {job.job_id for job in await ours.jobs(owner)} == {"2", "3", "4"}
    await redis.aclose()
