"""A step computes what waits, up to a bound of tokens; nobody waits for somebody's long request."""

from pathlib import Path

import pytest
import torch

from rose.errors import LogitsNotFinite
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.scheduler import EncodingRequest, EncodingScheduler
from tests.support.encoders import TEXTS, save_encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = save_encoder(tmp_path_factory.mktemp("model") / "m", normalize=True)
    return Encoder(str(folder), "embed")


def request_of(encoder: Encoder, name: str, *texts: str, dimensions: int = 48) -> EncodingRequest:
    return EncodingRequest(name, encoder.tokenizer.tokenize(texts), dimensions)


def test_an_answer_has_a_row_for_each_input_in_their_order(encoder: Encoder) -> None:
    scheduler = EncodingScheduler(encoder, capacity=4, max_step_tokens=60)
    scheduler.add(request_of(encoder, "a", *TEXTS))
    scheduler.add(request_of(encoder, "b", *reversed(TEXTS), dimensions=5))

    rows = {}
    while scheduler.has_unfinished:
        for output in scheduler.step():
            assert (output.index, output.token_ids, output.finish_reason) == (0, (), "stop")
            assert output.numbers is not None
            rows[output.request_id] = torch.tensor(output.numbers.rows())

    alone = torch.cat([encoder.encode(encoder.tokenizer.tokenize([text])) for text in TEXTS])
    torch.testing.assert_close(rows["a"], alone, atol=2e-6, rtol=0)
    shorter = torch.nn.functional.normalize(alone.flip(0)[:, :5], dim=1)
    torch.testing.assert_close(rows["b"], shorter, atol=1e-5, rtol=0)


def test_a_step_stays_within_its_tokens_and_serves_each_request_in_turn(encoder: Encoder) -> None:
    scheduler = EncodingScheduler(encoder, capacity=4, max_step_tokens=40)
    scheduler.add(request_of(encoder, "long", *["0123456789"] * 20))  # of 12 tokens each
    scheduler.add(request_of(encoder, "short", "a"))

    outputs = scheduler.step()

    assert [output.request_id for output in outputs] == ["short"]
    assert scheduler.stats().batch_size == 4  # 3 x 12 + 3
    assert scheduler.stats().prompt_tokens == 39


def test_where_not_all_fit_into_a_step_the_others_are_next(encoder: Encoder) -> None:
    scheduler = EncodingScheduler(encoder, capacity=4, max_step_tokens=12)
    for name in "abc":
        scheduler.add(request_of(encoder, name, "0123456789", "0123456789"))

    ended = []
    for _ in range(6):
        ended += [output.request_id for output in scheduler.step()]

    assert ended == ["a", "b", "c"]


def test_an_input_over_the_bound_is_computed_alone(encoder: Encoder) -> None:
    scheduler = EncodingScheduler(encoder, capacity=4, max_step_tokens=8)
    scheduler.add(request_of(encoder, "a", "0123456789" * 5))

    assert len(scheduler.step()) == 1


def test_one_request_may_run_alone(encoder: Encoder) -> None:
    scheduler = EncodingScheduler(encoder, capacity=4, max_step_tokens=100)
    for name in "ab":
        scheduler.add(request_of(encoder, name, "a"))

    assert [output.request_id for output in scheduler.step("b")] == ["b"]
    assert [output.request_id for output in scheduler.step()] == ["a"]


def test_an_aborted_request_is_gone(encoder: Encoder) -> None:
    scheduler = EncodingScheduler(encoder, capacity=4, max_step_tokens=20)
    scheduler.add(request_of(encoder, "a", *TEXTS))
    scheduler.step()

    scheduler.abort("a")
    scheduler.abort("unknown")

    assert not scheduler.has_unfinished
    assert scheduler.step() == []


def test_numbers_that_are_none_fail_their_request_alone(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "m")
    encoder = Encoder(str(folder), "embed")
    with torch.no_grad():
        encoder._model.embeddings.word_embeddings.weight[4] = torch.nan  # of the letter a
    scheduler = EncodingScheduler(encoder, capacity=4, max_step_tokens=100)
    scheduler.add(request_of(encoder, "bad", "c", "a"))
    scheduler.add(request_of(encoder, "good", "b"))

    outputs = {output.request_id: output for output in scheduler.step()}

    assert isinstance(outputs["bad"].error, LogitsNotFinite)
    assert outputs["bad"].numbers is None
    assert outputs["good"].numbers is not None
    assert not scheduler.has_unfinished
