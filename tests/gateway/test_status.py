"""GET /v1/status: what a person sees of the queue."""

from collections.abc import Callable

from rose_producer import Client
from tests.support.api_keys import bearer, create_key
from tests.support.bench import wait_until
from tests.support.echo import SLOW
from tests.support.gateway import Deployment

StartDeployment = Callable[..., Deployment]


def status(deployment: Deployment, secret: str = "") -> dict:
    headers = bearer(secret) if secret else {}
    answer = deployment.get("/status", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_says_how_full_the_batch_is_and_who_computes(start_deployment: StartDeployment) -> None:
    # given: two slots, three jobs
    deployment = start_deployment(worker={"max_batch_size": 2, **SLOW})
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        jobs = client.submit_many(["a", "b", "c"])
        wait_until(lambda: status(deployment)["queues"][0]["running"] == 2)
        # when
        (queue,) = status(deployment)["queues"]
        # then
        (worker,) = queue["workers"]
        assert (queue["queue"], queue["model"], queue["slots"]) == (deployment.queue, "null", 2)
        assert queue["waiting"] == {"high": 0, "normal": 1, "low": 0}
        assert (worker["name"], worker["jobs"], worker["slots"]) == (
            deployment.workers[0].name,
            2,
            2,
        )
        assert worker["silent_s"] < 15
        for job in jobs:
            job.cancel()


def test_tokens_and_time_between_two_looks_are_a_rate(deployment: Deployment) -> None:
    # given
    (before,) = status(deployment)["queues"]
    # when
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        client.submit("abc", max_new_tokens=7).result()
    # then
    tokens = before["generated_tokens"] + 7
    wait_until(lambda: status(deployment)["queues"][0]["generated_tokens"] == tokens)
    (after,) = status(deployment)["queues"]
    assert after["at"] > before["at"]


def test_it_is_no_trial_by_itself(deployment: Deployment) -> None:
    assert status(deployment)["demo"] is False
    assert deployment.post("/demo/kill-worker").status_code == 404


def test_a_key_sees_the_queues_of_its_models_and_nobody_else_any(
    start_own_deployment: StartDeployment,
) -> None:
    # given
    deployment = start_own_deployment()
    free, bound, other = (
        create_key(deployment, *options)["secret"]
        for options in ((), ("--model", "null"), ("--model", "another"))
    )
    # then
    wait_until(lambda: deployment.get("/status").status_code == 401)
    assert [queue["queue"] for queue in status(deployment, free)["queues"]] == [deployment.queue]
    assert [queue["queue"] for queue in status(deployment, bound)["queues"]] == [deployment.queue]
    assert status(deployment, other)["queues"] == []
    for headers in ({}, bearer("rose-000000000000-" + 24 * "a")):
        assert deployment.get("/status", headers=headers).status_code == 401
