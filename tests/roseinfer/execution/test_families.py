"""Families of transformers: the same tokens, or why not. `tests.fuzz.families` has all of them."""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.fuzz import families

SEED = 1


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


def test_a_sample_is_equal_or_refused() -> None:
    # given
    sample = families.FAMILIES[::6]
    # when
    verdicts = [families.check(family, SEED) for family in sample]
    # then
    assert [verdict for verdict in verdicts if verdict.word in families.WRONG] == []
    words = Counter(verdict.word for verdict in verdicts)
    assert words["equal"] > len(sample) // 3
    assert words["refused"] > len(sample) // 5


def test_a_model_that_says_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def other_answers(*_: Any, **__: Any) -> Sequence[list[int]]:
        return [[5] * families.COUNT] * len(families.PROMPTS)

    monkeypatch.setattr(families, "answers", other_answers)
    # when
    verdict = families.check("llama", SEED)
    # then
    assert verdict.word == "differs"
