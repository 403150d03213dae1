import pytest

from tests.chaos.trouble import Trouble, Troubles


@pytest.mark.parametrize(
    ("process", "partition", "after", "before", "what"),
    [
        ("worker-0", 0, 25.0, 26.0, "cut"),
        ("worker-0", 0, 0.0, 100.0, "cut"),  # over many slots
        ("worker-1", 0, 25.0, 26.0, None),  # somebody else's
        ("worker-0", 0, 35.5, 39.0, None),  # over by then, in the same slot
        ("worker-1", 1, 70.0, 71.0, "restart"),  # everybody's, in the middle of a long one
        ("worker-1", 0, 70.0, 71.0, None),  # in another partition
    ],
)
def test_what_befell_whom_between_two_times(
    process: str, partition: int, after: float, before: float, what: str | None
) -> None:
    # given
    troubles = Troubles(
        [
            Trouble(21.0, 35.0, "cut", "worker-0"),
            Trouble(50.0, 95.0, "restart", None, frozenset({1})),
        ]
    )
    # then
    assert troubles.during(process, partition, after, before) == what
