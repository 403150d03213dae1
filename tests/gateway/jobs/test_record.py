import pytest

from rose.errors import JobTooLarge, MalformedMessage
from rose_gateway.jobs.job_group import Record
from rose_gateway.storage.conversations import MAX_BYTES


def test_a_record_is_read_as_it_was_written() -> None:
    record = Record("chat", "m", "00", {"é": ["\ud800", 1.5, None]}, choices=3, store=False)
    assert Record.decode(record.encode()) == record


def test_a_record_is_bounded() -> None:
    with pytest.raises(JobTooLarge, match="begin a new conversation"):
        Record("response", "m", request={"items": "x" * MAX_BYTES}).encode()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"[]", b"{}", b'{"v":2}', b'{"v":1,"endpoint":"x"}', b"[" * 10_000],
)
def test_bytes_of_somebody_else_are_no_record(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Record.decode(raw)
