"""GET /v1/jobs/ID: who has written which part of a text."""

from collections.abc import Callable
from typing import Any

from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.echo import SLOW, echoed, running, serving
from tests.support.gateway import Deployment

StartDeployment = Callable[..., Deployment]


def asked(deployment: Deployment, job_id: str, query: str = "") -> Any:
    answer = deployment.get(f"/jobs/{job_id}{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_a_job_names_the_workers_that_have_written_it(start_deployment: StartDeployment) -> None:
    # given
    deployment = start_deployment(worker={"max_batch_size": 1, **SLOW})
    (first,) = deployment.workers
    text = "Grüße 🌹"
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        job = client.submit(text, max_new_tokens=90)
        waits = client.submit("z", max_new_tokens=1)
        wait_until(lambda: running(job, 5))
        assert asked(deployment, waits.id, "?characters=true")["workers"] == []
        # when: it is killed
        first.kill()
        with serving("second", deployment.redis_url, queue=deployment.queue):
            result = job.result()
    # then
    before, after = asked(deployment, job.id, "?characters=true")["workers"]
    assert before == {"worker": first.name, "from_token": 0, "from_character": 0}
    assert after["worker"] == "second"
    assert 5 <= after["from_token"] < 90
    earlier = echoed(text.encode(), after["from_token"])
    assert result.text[: after["from_character"]] == "".join(f"{token} " for token in earlier)
    assert [one["from_character"] for one in asked(deployment, job.id)["workers"]] == [None, None]
