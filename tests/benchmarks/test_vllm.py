"""The case that puts vLLM behind the queue beside vLLM alone; how fast decides nothing here."""

from collections.abc import Mapping

import pytest

from benchmarks.board import Board
from benchmarks.vllm.generate import KINDS, PLAIN, QUEUE, SAMPLING, Contender, Generation
from benchmarks.workload import Workload


class Steady:
    """Always as fast, and remembers what it was asked."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self._rate = name, rate
        self.asked: list[tuple[Workload, Mapping[str, float]]] = []

    def rate(self, work: Workload, sampling: Mapping[str, float]) -> float:
        self.asked.append((work, sampling))
        return self._rate


@pytest.mark.parametrize(("through", "met"), [(95.0, True), (94.0, False)])
def test_the_queue_is_held_to_a_share_of_generate(through: float, met: bool) -> None:
    # given
    rates = {QUEUE: through, PLAIN: 100.0, SAMPLING: 98.0}
    contenders: list[Contender] = [Steady(name, rate) for name, rate in rates.items()]
    board = Board("", base=PLAIN)
    case = Generation(contenders, vocabulary=100, requests=4, max_tokens=8)
    # when
    for turn in range(2):
        case.round(board, turn)
    case.judge(board)
    # then
    assert [check.met for check in board.checks] == [met] * len(KINDS)
    for kind in KINDS:
        assert set(board.contenders(f"{kind}, tokens/s")) == set(rates)


def test_all_contenders_get_the_same_and_no_prompt_comes_twice() -> None:
    # given
    one, other = Steady(PLAIN, 1.0), Steady(QUEUE, 1.0)
    case = Generation([one, other], vocabulary=100, requests=4, max_tokens=8)
    # when
    for turn in (-1, 0, 1):
        case.round(Board(""), turn)
    # then
    assert one.asked == other.asked
    prompts = [tuple(prompt) for work, _ in one.asked for prompt in work.prompts]
    assert len(set(prompts)) == len(prompts)
