"""POST /v1/rerank and /v1/score. The null encoder's score is the share of the query's words."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.gateway import Deployment, running_deployment

MODEL = "null-encoder"
QUERY = "the quick hare"
DOCUMENTS = ["a tortoise", "the hare", "the quick brown hare", "the fox"]
SCORES = [0.0, 2 / 3, 1.0, 1 / 3]


@pytest.fixture(scope="module")
def deployment(_brokers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    broker: EmbeddedBroker = _brokers(False)
    with running_deployment(
        broker.url,
        "gateway-ranks",
        worker={"task": "score", "max_context": 100},
        storage=str(tmp_path_factory.mktemp("files")),
    ) as deployment:
        yield deployment


def rerank(deployment: Deployment, path: str = "/rerank", **change: Any) -> Any:
    body = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, **change}
    return deployment.post(path, json=body)


def test_the_best_document_is_the_first(deployment: Deployment) -> None:
    answer = rerank(deployment).json()

    assert [result["index"] for result in answer["results"]] == [2, 1, 3, 0]
    found = [result["relevance_score"] for result in answer["results"]]
    assert found == pytest.approx(sorted(SCORES, reverse=True))
    assert answer["model"] == MODEL
    assert answer["usage"]["total_tokens"] == sum(map(len, DOCUMENTS))
    assert "document" not in answer["results"][0]


def test_results_may_be_few_and_have_their_documents(deployment: Deployment) -> None:
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[2]}]

    answer = rerank(deployment, documents=documents, top_n=1, return_documents=True).json()

    (result,) = answer["results"]
    assert (result["index"], result["document"]) == (1, {"text": DOCUMENTS[2]})


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank"])
def test_other_servers_paths_are_known(deployment: Deployment, path: str) -> None:
    body = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, "top_n": 2}

    answer = httpx.post(f"{deployment.origin}{path}", json=body, timeout=90).json()

    assert [result["index"] for result in answer["results"]] == [2, 1]


def test_many_documents_are_divided_and_ranked_together(deployment: Deployment) -> None:
    documents = [f"document {number}" for number in range(150)]
    documents[140] = QUERY

    answer = rerank(deployment, documents=documents, top_n=1).json()

    assert answer["results"][0]["index"] == 140


def test_what_is_too_long_is_cut_or_refused(deployment: Deployment) -> None:
    documents = ["x" * 200, QUERY]

    assert rerank(deployment, documents=documents).json()["results"][0]["index"] == 1
    refused = rerank(deployment, documents=documents, truncate=False)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "documents")
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("text_1", "text_2", "scores"),
    [
        (QUERY, DOCUMENTS, SCORES),
        (QUERY, DOCUMENTS[1], SCORES[1:2]),
        ([QUERY, "a b"], ["the hare", "b c"], [2 / 3, 0.5]),
        ([f"q{n}" for n in range(100)], [f"q{n // 2 * 2}" for n in range(100)], [1.0, 0.0] * 50),
    ],
)
def test_pairs_are_scored_in_their_order(
    deployment: Deployment, text_1: Any, text_2: Any, scores: list[float]
) -> None:
    body = {"model": MODEL, "text_1": text_1, "text_2": text_2}

    answer = deployment.post("/score", json=body).json()

    assert [one["index"] for one in answer["data"]] == list(range(len(scores)))
    assert [one["score"] for one in answer["data"]] == pytest.approx(scores)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/rerank", {"query": "q", "documents": []}, "documents"),
        ("/rerank", {"query": "q", "documents": ["a"] * 2049}, "documents"),
        ("/rerank", {"query": "q", "documents": [5]}, "documents[0]"),
        ("/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": "x" * 101}, "text_2"),
        ("/embeddings", {"input": "a"}, "model"),
    ],
)
def test_a_wrong_request_is_refused(
    deployment: Deployment, path: str, body: dict[str, Any], param: str
) -> None:
    answer = deployment.post(path, json={"model": MODEL, **body})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_idempotency_key_brings_the_first_ranks(deployment: Deployment) -> None:
    body = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, "return_documents": True}
    headers = {"Idempotency-Key": "k"}

    answers = [deployment.post("/rerank", json=body, headers=headers) for _ in range(2)]

    assert answers[0].json() == answers[1].json()
    job = deployment.get(f"/jobs/{answers[0].headers['x-rose-job-id']}").json()
    assert job["endpoint"] == "rerank"


def test_the_client_scores(deployment: Deployment) -> None:
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        assert client.score(QUERY, DOCUMENTS, timeout_s=90) == pytest.approx(SCORES)
        found = client.score(["a", "b"] * 50, ["a"] * 100, timeout_s=90)
    assert found == [1.0, 0.0] * 50


def test_a_batch_ranks(deployment: Deployment) -> None:
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/rerank",
        "body": {"model": MODEL, "query": QUERY, "documents": DOCUMENTS},
    }
    with deployment.openai() as ai:
        content = json.dumps(line).encode()
        file = ai.files.create(file=("in.jsonl", content), purpose="batch")
        batch = ai.batches.create(
            input_file_id=file.id,
            endpoint="/v1/rerank",  # type: ignore[arg-type]
            completion_window="24h",
        )
        wait_until(lambda: ai.batches.retrieve(batch.id).status == "completed")
        output = ai.batches.retrieve(batch.id).output_file_id
        assert output is not None
        (answer,) = map(json.loads, ai.files.content(output).text.splitlines())
    assert answer["response"]["body"]["results"][0]["index"] == 2
