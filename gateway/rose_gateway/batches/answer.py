"""The answer to a line of a batch, as OpenAI writes it into output and error files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose_gateway.batches.line import Line
from rose_gateway.errors import ApiError
from rose_gateway.jobs.job_group import JobGroup
from rose_gateway.json_text import compact


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    """of its line"""
    custom_id: str | None
    """None where the line cannot be read"""
    record: bytes
    """a line of JSON without its line break"""
    succeeded: bool
    """it belongs into the output; else into the error file, and the record says `line` too"""
    unkept: JobGroup | None = None
    """its job was not to be stored"""

    async def delivered(self) -> None:
        """Call this when the record has been written. Raises: BrokerUnavailable"""
        if self.unkept is not None:
            await self.unkept.delete()


class AnswerWriter:
    """Makes the answers of one batch."""

    def __init__(self, batch_id: str) -> None:
        self._batch = batch_id.removeprefix("batch_")

    def request_id(self, line: Line) -> str:
        return f"batch_req_{self._batch}_{line.number}"

    def answered(
        self,
        line: Line,
        custom_id: str,
        body: Mapping[str, Any],
        *,
        status: int,
        succeeded: bool,
        group: JobGroup | None = None,
    ) -> Answer:
        """What the API would have answered. `group`: of the job, where there was one."""
        response = {
            "status_code": status,
            "request_id": f"req_{group.id}" if group else self.request_id(line),
            "body": body,
        }
        kept = group is None or group.own_record.store
        unkept = None if kept else group
        return self._answer(line, custom_id, succeeded, unkept, response=response, error=None)

    def unanswered(
        self, line: Line, custom_id: str | None, code: str | None, message: str, param: str | None
    ) -> Answer:
        """For a line that was not sent."""
        error = {"code": code, "message": message, "param": param}
        return self._answer(line, custom_id, False, None, response=None, error=error)

    def refused(self, line: Line, custom_id: str | None, error: ApiError) -> Answer:
        """For a line that is none."""
        return self.unanswered(line, custom_id, error.code, error.message, error.param)

    def _answer(
        self,
        line: Line,
        custom_id: str | None,
        succeeded: bool,
        unkept: JobGroup | None,
        **outcome: Mapping[str, Any] | None,
    ) -> Answer:
        fields: dict[str, Any] = {"id": self.request_id(line), "custom_id": custom_id, **outcome}
        if not succeeded:
            fields["line"] = line.number
        record = compact(fields).encode("utf-8", "replace")
        return Answer(line.number, custom_id, record, succeeded, unkept)
