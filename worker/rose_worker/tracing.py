"""A job's spans: waiting, prefill, decode, below the span of its producer.

The spans are made when the job leaves this worker, from times that the worker keeps anyway, so
tracing costs the engine nothing. A killed worker leaves no spans; the spans of the worker that
continues have `rose.resumed`. Names and attributes follow OpenTelemetry's conventions for
generative AI. No span holds a prompt or an output.
"""

import time
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rose.protocol import CancelledEvent, Event, FailedEvent, FinishedEvent
from rose_worker.engine import ModelInfo
from rose_worker.jobs import HeldJob

_CONTEXT = TraceContextTextMapPropagator()


class Tracing:
    def __init__(self, model: ModelInfo, consumer: str, provider: Any = None) -> None:
        """`provider`: a TracerProvider. The default exports by OTLP over HTTP, and OpenTelemetry's
        own variables configure it (`OTEL_EXPORTER_OTLP_ENDPOINT`, ...)."""
        if provider is None:
            # OTEL_SERVICE_NAME wins over our name.
            resource = Resource({"service.name": "rose-worker"}).merge(Resource.create())
            provider = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._provider = provider
        self._tracer = provider.get_tracer("roseinfer")
        self._model = model.name
        self._consumer = consumer

    def ended(self, job: HeldJob, event: Event, now: float) -> None:
        """The job's terminal event is in the log."""
        self._record(job, now, event.index - job.first_index, event)

    def left(self, job: HeldJob, now: float, why: str) -> None:
        """The job continues elsewhere; `why`: released, fenced, lease_lost or unpublished."""
        self._record(job, now, job.logged - job.first_index, None, why)

    def close(self) -> None:
        """Send the spans that wait."""
        self._provider.shutdown()

    def _record(
        self, job: HeldJob, now: float, tokens: int, event: Event | None, why: str = ""
    ) -> None:
        offset_s = time.time() - time.monotonic()

        def unix_ns(monotonic_s: float) -> int:
            return int((monotonic_s + offset_s) * 1e9)

        parent = _CONTEXT.extract({"traceparent": job.spec.traceparent or ""})
        outcome = why if event is None else event.type
        span = self._tracer.start_span(
            f"{_operation(job)} {self._model}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            start_time=unix_ns(job.taken_at if job.resumed else job.enqueued_at),
            attributes=self._attributes(job, tokens, outcome),
        )
        if isinstance(event, FinishedEvent):
            span.set_attribute("gen_ai.response.finish_reasons", [event.reason])
        elif isinstance(event, FailedEvent):
            span.set_attribute("error.type", event.code)
            span.set_status(trace.StatusCode.ERROR, event.code)
        elif isinstance(event, CancelledEvent):
            span.set_attribute("error.type", "cancelled")
        below = trace.set_span_in_context(span)
        first = job.first_token_at
        phases = [("prefill", job.taken_at, first or now)]
        if not job.resumed:
            phases.insert(0, ("queue_wait", job.enqueued_at, job.taken_at))
        if first is not None:
            phases.append(("decode", first, now))
        for name, start, end in phases:
            self._tracer.start_span(name, context=below, start_time=unix_ns(start)).end(
                unix_ns(end)
            )
        span.end(unix_ns(now))

    def _attributes(self, job: HeldJob, tokens: int, outcome: str) -> dict[str, Any]:
        sampling = job.spec.sampling
        attributes = {
            "gen_ai.operation.name": _operation(job),
            "gen_ai.provider.name": "roseinfer",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.usage.input_tokens": job.prompt_tokens,
            "gen_ai.usage.output_tokens": tokens,
            "messaging.system": "roseinfer",
            "messaging.destination.name": job.lease.partition.queue,
            "messaging.message.id": job.spec.id,
            "messaging.client.id": self._consumer,
            "rose.outcome": outcome,
            "rose.resumed": job.resumed,
            "rose.epoch": job.epoch,
        }
        return {name: value for name, value in attributes.items() if value is not None}


def _operation(job: HeldJob) -> str:
    return "chat" if job.spec.messages else "text_completion"
