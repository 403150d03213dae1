"""Trace context for jobs, where the application traces with OpenTelemetry.

It imports nothing and does nothing unless the application has set up a provider.
"""

import sys
from typing import Any


def is_traced() -> bool:
    """Whether the application traces; asking costs too much for each job."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    # redis-py loads OpenTelemetry wherever it is installed: that says nothing.
    return trace is not None and not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    )


def traceparent(queue: str, job_id: str) -> str | None:
    """A span `create QUEUE` below the caller's, as a W3C `traceparent`, where `is_traced`.

    Named and attributed as OpenTelemetry's conventions for messaging say.
    """
    # Here, because they are imported only for an application that traces.
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes = {
        "messaging.system": "roseinfer",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": queue,
        "messaging.message.id": job_id,
    }
    span = trace.get_tracer("roseinfer").start_span(
        f"create {queue}", kind=trace.SpanKind.PRODUCER, attributes=attributes
    )
    span.end()
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")
