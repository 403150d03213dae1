"""One trace from the caller to the last token; and nothing of it where nobody traces."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rose.errors import InvalidParameter
from rose.protocol import JobSpec, decode_job, encode_job
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient
from rose_worker import service, tracing
from rose_worker.null_engine import NullEngine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """What the application, this process, has set up."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


async def test_the_workers_spans_are_below_the_producers(
    broker: EmbeddedBroker,
    queue: str,
    exporter: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: a worker in this process, whose spans come here too
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    real = tracing.Tracing
    monkeypatch.setattr(tracing, "Tracing", lambda model, name: real(model, name, provider))
    settings = WorkerSettings(
        redis_url=broker.url,
        queue=queue,
        engine="null",
        min_step_s=0.005,
        http_port=0,
        tracing=True,
        name="me",
    )
    worker = asyncio.create_task(Worker(settings, lambda: NullEngine(settings)).run())
    # when: a caller with a span submits
    async with AsyncClient(redis_url=broker.url, queue=queue) as client:
        with trace.get_tracer("test").start_as_current_span("ask"):
            good = await client.submit("secret words", max_new_tokens=3, top_k=5)
            chat = [{"role": "user", "content": "secret" * 2000}]
            cancelled = await client.submit(chat, max_new_tokens=100_000)
        await good.result(90)
        while (await cancelled.status()).tokens == 0:
            await asyncio.sleep(0.01)
        await cancelled.cancel()
        while (await cancelled.status()).status != "cancelled":
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await worker
    # then: one trace
    spans = exporter.get_finished_spans()
    (ask,) = [span for span in spans if span.name == "ask"]
    assert {span.context.trace_id for span in spans} == {ask.context.trace_id}
    created = {attribute(s, "messaging.message.id"): s for s in below(spans, ask)}
    assert created.keys() == {good.id, cancelled.id}
    assert {span.kind for span in created.values()} == {trace.SpanKind.PRODUCER}
    # then: of the one that finished
    (served,) = below(spans, created[good.id])
    assert served.name == "text_completion null"
    assert served.kind == trace.SpanKind.CONSUMER
    assert [s.name for s in below(spans, served)] == ["queue_wait", "prefill", "decode"]
    waited, prefill, decode = below(spans, served)
    assert waited.end_time == prefill.start_time
    assert prefill.end_time == decode.start_time
    assert served.start_time == waited.start_time
    assert served.end_time == decode.end_time
    for name, value in {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "null",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.top_k": 5,
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("length",),
        "messaging.client.id": "me",
        "rose.outcome": "finished",
    }.items():
        assert attribute(served, name) == value
    # then: of the one that did not
    (ended,) = below(spans, created[cancelled.id])
    assert ended.name == "chat null"
    assert attribute(ended, "error.type") == "cancelled"
    assert not any("secret" in span.to_json() for span in spans)


def below(spans: tuple[ReadableSpan, ...], parent: ReadableSpan) -> list[ReadableSpan]:
    return [s for s in spans if s.parent and s.parent.span_id == parent.context.span_id]


def attribute(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(name)


def test_a_job_that_nobody_traces_is_as_before_on_the_wire() -> None:
    job = JobSpec(id="0-x", prompt="x")
    assert b"traceparent" not in encode_job(job)
    context = f"00-{'a' * 32}-{'b' * 16}-01"
    traced = job.model_copy(update={"traceparent": context})
    assert decode_job(encode_job(traced)).traceparent == context
    with pytest.raises(InvalidParameter, match="traceparent"):
        decode_job(encode_job(job.model_copy(update={"traceparent": "somewhere"})))


def test_nothing_is_done_where_nobody_traces() -> None:
    code = (
        "import sys, rose_worker.main; from rose_producer.request import is_traced; "
        "print(is_traced(), 'rose_worker.tracing' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False False\n"


def test_tracing_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rose_worker.tracing", None)
    settings = WorkerSettings(engine="null", tracing=True)
    with pytest.raises(service.ConfigurationError, match=r"pip install .*\[tracing\]"):
        service._tracing(settings, None, None)
