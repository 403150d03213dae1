"""The blocking client: the asyncio one, on a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from rose import transport
from rose.protocol import Priority
from rose.protocol.calls import Submission
from rose.protocol.status import JobRecord, JobStatus, QueueStatus, ServedModel, check_job_id
from rose.protocol.tenants import TenantsStatus
from rose.sampling import SamplingOptions
from rose_producer.async_client import AsyncClient, AsyncJob, given_settings
from rose_producer.embeddings import Embeddings
from rose_producer.request import (
    InputLike,
    PriorityLike,
    PromptLike,
    Request,
    Spread,
    prepare_all,
)
from rose_producer.results import Result
from rose_producer.stream import Bursts, Events

if TYPE_CHECKING:
    from rose_producer.settings import ProducerOptions, ProducerSettings


class Client:
    """As `AsyncClient`, for any number of threads, and usable where an event loop runs.

    Its thread begins with the first call and ends with `close`. A signal handler may raise while a
    call waits: then the call is cancelled, and the client goes on. A forked child may use it, too.
    """

    def __init__(
        self, settings: ProducerSettings | None = None, **overrides: Unpack[ProducerOptions]
    ) -> None:
        self.settings = given_settings(settings, overrides)
        self._thread = transport.LoopThread(partial(AsyncClient, self.settings))
        self._spread: Spread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.close()

    def submit(
        self,
        prompt: PromptLike,
        *,
        priority: PriorityLike = Priority.NORMAL,
        deadline_s: float | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        idempotency_key: str | None = None,
        job_id: str | None = None,
        record: bytes = b"",
        owner: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        tenant: str | None = None,
        adapter: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        session: str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Job:
        """As `AsyncClient.submit`."""
        request = Request(
            prompt,
            priority,
            deadline_s,
            metadata or {},
            idempotency_key,
            job_id,
            sampling,
            record,
            owner,
            tools or (),
            tenant,
            adapter,
            chat_template_kwargs or {},
            cache_salt,
            session=session,
        )
        return self.submit_many([request])[0]

    def submit_many(self, requests: Iterable[Request | PromptLike]) -> list[Job]:
        """As `AsyncClient.submit_many`."""
        # Here: `requests` may be a generator that calls this client.
        prepared = prepare_all(requests, self.settings, self._spread)
        ids = self._thread.call(lambda client: self._enqueue(client, prepared))
        return [Job(self, job_id) for job_id in ids]

    async def _enqueue(self, client: AsyncClient, prepared: Sequence[Submission]) -> list[str]:
        ids = await client.enqueue(prepared)
        if client.spread is not None and self._spread is None:
            self._spread = Spread(self.settings.partitions)
        return ids

    def submit_recorded(self, request: Request) -> tuple[Job, JobRecord]:
        """As `AsyncClient.submit_recorded`."""
        job, record = self._thread.call(lambda client: client.submit_recorded(request))
        return Job(self, job.id), record

    def embed(
        self,
        inputs: Sequence[InputLike],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        priority: PriorityLike = Priority.NORMAL,
        deadline_s: float | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> Embeddings:
        """As `AsyncClient.embed`."""
        return self._thread.call(
            lambda client: client.embed(
                inputs,
                dimensions=dimensions,
                prompt_name=prompt_name,
                truncate=truncate,
                priority=priority,
                deadline_s=deadline_s,
                idempotency_key=idempotency_key,
                tenant=tenant,
                timeout_s=timeout_s,
            )
        )

    def score(
        self,
        query: str | Sequence[str],
        texts: Sequence[str],
        *,
        truncate: bool = True,
        priority: PriorityLike = Priority.NORMAL,
        deadline_s: float | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> list[float]:
        """As `AsyncClient.score`."""
        return self._thread.call(
            lambda client: client.score(
                query,
                texts,
                truncate=truncate,
                priority=priority,
                deadline_s=deadline_s,
                idempotency_key=idempotency_key,
                tenant=tenant,
                timeout_s=timeout_s,
            )
        )

    def job(self, job_id: str) -> Job:
        """As `AsyncClient.job`."""
        check_job_id(job_id)
        return Job(self, job_id)

    def queue_status(self) -> QueueStatus:
        """As `AsyncClient.queue_status`."""
        return self._thread.call(AsyncClient.queue_status)

    def queues(self) -> list[QueueStatus]:
        """As `AsyncClient.queues`."""
        return self._thread.call(AsyncClient.queues)

    def tenants(self, count: int = 20) -> TenantsStatus:
        """As `AsyncClient.tenants`."""
        return self._thread.call(lambda client: client.tenants(count))

    def model(self) -> ServedModel | None:
        """As `AsyncClient.model`."""
        return self._thread.call(AsyncClient.model)

    def vocabulary(self, model: ServedModel) -> tuple[bytes, ...] | None:
        """As `AsyncClient.vocabulary`."""
        return self._thread.call(lambda client: client.vocabulary(model))


class Job:
    """A handle: the id, and where to ask. Cheap to make, nothing to close."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._thread = client._thread
        self.id = job_id

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def stream(self, cursor: int = 0, *, timeout_s: float | None = None) -> Events:
        """As `AsyncJob.stream`. A reader that stops early closes it: `with job.stream() as events`.

        A reader that was interrupted may go on with it. A forked child that goes on with its
        parent's reads for itself, and the parent does as well.
        """
        return Events(self._thread, self.id, cursor, timeout_s)

    def bursts(self, cursor: int = 0, *, timeout_s: float | None = None) -> Bursts:
        """As `AsyncJob.bursts`."""
        return Bursts(self._thread, self.id, cursor, timeout_s)

    def result(self, timeout_s: float | None = None) -> Result:
        """As `AsyncJob.result`."""
        return self._thread.call(lambda client: AsyncJob(client, self.id).result(timeout_s))

    def status(self) -> JobStatus:
        """As `AsyncJob.status`."""
        return self._thread.call(lambda client: AsyncJob(client, self.id).status())

    def record(self) -> JobRecord:
        """As `AsyncJob.record`."""
        return self._thread.call(lambda client: AsyncJob(client, self.id).record())

    def cancel(self) -> bool:
        """As `AsyncJob.cancel`."""
        return self._thread.call(lambda client: AsyncJob(client, self.id).cancel())

    def delete(self) -> bool:
        """As `AsyncJob.delete`."""
        return self._thread.call(lambda client: AsyncJob(client, self.id).delete())


# For `help`, which does not follow a reference.
Client.submit.__doc__ = AsyncClient.submit.__doc__
Client.embed.__doc__ = AsyncClient.embed.__doc__
Client.score.__doc__ = AsyncClient.score.__doc__
