"""GET /v1/models: what workers announce."""

from collections.abc import Callable

import openai
import pytest
import redis

from rose.protocol import Partition
from tests.support.api_keys import create_key
from tests.support.bench import wait_until
from tests.support.gateway import Deployment


def test_a_model_is_what_its_workers_announce(deployment: Deployment) -> None:
    with deployment.openai() as ai:
        (listed,) = ai.models.list().data

        assert ai.models.retrieve("null") == listed
    assert (listed.id, listed.object, listed.owned_by) == ("null", "model", "roseinfer")
    assert listed.model_extra is not None
    assert listed.model_extra["context_length"] == 1 << 20
    assert listed.model_extra["queue"] == deployment.queue


def test_an_adapter_is_a_model_of_its_own(start_own_deployment: Callable[..., Deployment]) -> None:
    # given: what workers of another engine would announce
    deployment = start_own_deployment(aliases='{"legal": "null:law"}')
    with redis.Redis.from_url(deployment.redis_url, protocol=2) as raw:
        raw.hset(Partition(deployment.queue).model, "adapters", "law french")
    everything, one = (create_key(deployment, *o)["secret"] for o in ((), ("--model", "null:law")))
    # when
    with deployment.openai(api_key=everything) as ai, deployment.openai(api_key=one) as narrow:
        wait_until(lambda: len(ai.models.list().data) == 4)  # what was read lately is believed
        listed = {model.id: (model.model_extra or {})["adapter"] for model in ai.models.list()}
        allowed = [model.id for model in narrow.models.list()]
        ask = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        # then: the job names it (the null engine says that it has none)
        with pytest.raises(openai.APIError, match=r"adapter.*'law'"):
            narrow.chat.completions.create(model="null:law", **ask)
        with pytest.raises(openai.PermissionDeniedError) as denied:
            narrow.chat.completions.create(model="null", **ask)
        assert denied.value.param == "model"
        assert ai.chat.completions.create(model="null", **ask).choices[0].message.content
    assert listed == {"null": None, "null:french": "french", "null:law": "law", "legal": "law"}
    assert allowed == ["null:law"]


def test_a_key_sees_the_models_that_it_may_use(
    start_own_deployment: Callable[..., Deployment],
) -> None:
    deployment = start_own_deployment(aliases='{"gpt": "null", "other": "null"}')
    secrets = [
        create_key(deployment, *options)["secret"]
        for options in ((), ("--model", "null"), ("--model", "gpt"), ("--model", "none"))
    ]

    seen = []
    for secret in secrets:
        with deployment.openai(api_key=secret) as ai:
            seen.append([model.id for model in ai.models.list()])

    assert seen == [["gpt", "null", "other"], ["gpt", "null", "other"], ["gpt"], []]
    with deployment.openai(api_key=secrets[2]) as ai:
        assert ai.models.retrieve("gpt").id == "gpt"
        with pytest.raises(openai.NotFoundError):
            ai.models.retrieve("other")


def test_codex_reads_a_catalogue_of_its_own_form(deployment: Deployment) -> None:
    # when
    plain = deployment.get("/models").json()
    asked = deployment.get("/models?client_version=0.171.0").json()

    # then
    assert "models" not in plain
    (model,) = asked["models"]
    assert model["slug"] == plain["data"][0]["id"]
    assert model["context_window"] == plain["data"][0]["context_length"]
    assert model["apply_patch_tool_type"] == "freeform"
