import pytest

from tests.chaos.spans import Spans


def test_spans_are_joined_and_taken_away() -> None:
    # given
    spans = Spans([(5.0, 6.0), (1.0, 3.0), (2.0, 4.0), (7.0, 7.0)])
    # then
    assert spans.spans == [(1.0, 4.0), (5.0, 6.0)]
    assert (spans | Spans([(4.0, 5.0)])).spans == [(1.0, 6.0)]
    assert (spans - Spans([(2.0, 3.0), (5.5, 9.0)])).spans == [(1.0, 2.0), (3.0, 4.0), (5.0, 5.5)]
    assert (spans - Spans([(0.0, 9.0)])).spans == []


@pytest.mark.parametrize(
    ("began", "ended", "seconds"),
    [(0.0, 9.0, 4.0), (0.0, 0.5, 0.0), (2.0, 3.0, 1.0), (3.5, 5.5, 1.0), (8.0, 9.0, 0.0)],
)
def test_how_much_lies_between_two_times(began: float, ended: float, seconds: float) -> None:
    # given
    spans = Spans([(1.0, 4.0), (5.0, 6.0)])
    # then
    assert spans.within(began, ended) == pytest.approx(seconds)
