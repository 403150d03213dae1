"""Bytes in, messages or typed errors out; never anything else."""

import msgpack
import pytest

from rose.engine_records import PromptLogprobs, TokenLogprob
from rose.errors import (
    InvalidParameter,
    InvalidRequest,
    JobTooLarge,
    MalformedMessage,
    PromptTooLong,
)
from rose.protocol import (
    MAX_JOB_BYTES,
    MAX_METADATA_BYTES,
    CancelledEvent,
    FailedEvent,
    FinishedEvent,
    JobSpec,
    TokenEvent,
    decode_event,
    decode_job,
    encode_event,
    encode_job,
    encode_tokens,
    error_of,
    most_prompt_logprobs,
    readable_job_id,
)
from rose.protocol.codec import MAX_EVENT_BYTES
from rose.sampling import SamplingParams

PROMPTS = [
    "Once upon a time",
    "späte Grüße 🦊",
    (1, 2, 3),
    ({"role": "system", "content": ""}, {"role": "user", "content": "hi"}),
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "unicode", "ids", "chat"])
def test_a_job_survives_the_wire(prompt: object) -> None:
    # given
    job = JobSpec.model_validate(
        {
            "id": "0-a",
            "prompt": prompt,
            "sampling": {
                "temperature": 0.5,
                "stop": ["\n"],
                "seed": 2**63 - 1,
                "logit_bias": [[7, -1.5], [8, 2.0]],
                "logprobs": True,
                "json_schema": "{}",
            },
            "deadline_ms": 5,
            "metadata": {"user": "x", "n": 1, "f": 0.5, "none": None, "flag": True},
        }
    )
    # when
    again = decode_job(encode_job(job))
    # then
    assert again == job


@pytest.mark.parametrize(
    "event",
    [
        TokenEvent(index=3, token_ids=(5, 6), text="éa", text_lengths=(0, 2)),
        TokenEvent(
            index=3,
            token_ids=(5, 6),
            text="é",
            text_lengths=(0, 1),
            logprobs=(TokenLogprob(-0.5, ()), TokenLogprob(-3.25, ((5, -0.25), (7, -1.5)))),
        ),
        TokenEvent(
            index=0,
            token_ids=(5,),
            text="é",
            logprobs=(TokenLogprob(-0.5, ()),),
            prompt_logprobs=PromptLogprobs((8, 9), (TokenLogprob(-2.5, ((7, -0.25),)),)),
        ),
        FinishedEvent(index=2, reason="eos", prompt_tokens=7),
        FinishedEvent(index=2, reason="eos", prompt_tokens=7, cached_tokens=0),
        CancelledEvent(index=0),
        FailedEvent(index=0, code="x", message="m"),
        FailedEvent(index=0, code="invalid_parameter", message="m", param="stop"),
    ],
)
def test_an_event_survives_the_wire(event: TokenEvent) -> None:
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("lengths", [(), (2,), (1, 2), (0, 0), (3, -1), (1, 1, 0), "11"])
def test_lengths_that_do_not_fit_their_text_are_no_event(lengths: object) -> None:
    fields = {"index": 3, "type": "tokens", "token_ids": [5, 6], "text": "éa"}
    with pytest.raises(MalformedMessage, match="text_lengths"):
        decode_event(msgpack.packb({**fields, "text_lengths": lengths}))


def test_an_event_is_cut_into_single_tokens() -> None:
    # given
    logprobs = (TokenLogprob(-1.0, ()), TokenLogprob(-2.0, ()), TokenLogprob(-3.0, ()))
    prompt = PromptLogprobs((8,), ())
    event = TokenEvent(
        index=0,
        token_ids=(5, 6, 7),
        text="éabc",
        logprobs=logprobs,
        prompt_logprobs=prompt,
        text_lengths=(1, 0, 3),
    )
    # when
    singles = event.single_tokens()
    # then
    assert singles == [
        TokenEvent(
            index=0, token_ids=(5,), text="é", logprobs=logprobs[:1], prompt_logprobs=prompt
        ),
        TokenEvent(index=1, token_ids=(6,), text="", logprobs=logprobs[1:2]),
        TokenEvent(index=2, token_ids=(7,), text="abc", logprobs=logprobs[2:]),
    ]


def test_token_events_without_logprobs_have_the_bytes_they_always_had() -> None:
    # given: as version 1 first wrote them
    raw = b"\x84\xa5index\x03\xa4type\xa6tokens\xa9token_ids\x92\x05\x06\xa4text\xa2\xc3\xa9"
    # then
    assert encode_tokens(3, (5, 6), "é") == raw
    assert encode_event(TokenEvent(index=3, token_ids=(5, 6), text="é")) == raw


def test_an_end_without_cached_tokens_has_the_bytes_it_always_had() -> None:
    fields = {"index": 2, "type": "finished", "reason": "eos", "prompt_tokens": 7}
    assert encode_event(FinishedEvent(index=2, reason="eos", prompt_tokens=7)) == msgpack.packb(
        fields
    )


def test_a_failure_of_no_single_parameter_has_the_bytes_it_always_had() -> None:
    fields = {"index": 2, "type": "failed", "code": "crash_loop", "message": "m"}
    assert encode_event(FailedEvent(index=2, code="crash_loop", message="m")) == msgpack.packb(
        fields
    )


@pytest.mark.parametrize(
    "error",
    [
        InvalidParameter("stop: too many", param="stop"),
        InvalidParameter("a grammar that nothing fits"),
        PromptTooLong.of(60, 50),
    ],
)
def test_an_error_survives_its_event(error: InvalidRequest) -> None:
    # when
    event = decode_event(encode_event(FailedEvent.of(error, index=3)))
    # then
    assert isinstance(event, FailedEvent)
    again = error_of(event, "0-job")
    assert type(again) is type(error)
    assert str(again) == f"job 0-job: {error}"
    assert isinstance(again, InvalidRequest)
    assert again.param == error.param


def test_a_failure_of_an_older_worker_names_what_its_code_does() -> None:
    def param_of(code: str) -> str | None:
        fields = {"index": 0, "type": "failed", "code": code, "message": "m"}
        event = decode_event(msgpack.packb(fields))
        assert isinstance(event, FailedEvent)
        error = error_of(event, "0-job")
        assert isinstance(error, InvalidRequest)
        return error.param

    assert param_of("prompt_too_long") == "prompt"
    assert param_of("invalid_parameter") is None


def test_logprobs_are_small_on_the_wire() -> None:
    top = tuple((100_000 + i, -i / 3) for i in range(20))
    with_them = encode_tokens(3, (5,), "é", [TokenLogprob(-0.1, top)])
    assert len(with_them) - len(encode_tokens(3, (5,), "é")) <= 20 * 11 + 20


@pytest.mark.parametrize(
    "logprobs",
    [5, [[]], [["x", []]], [[-1.0, [[1]]]], [[float("nan"), []]], [[-1.0, [[1, -1.0]] * 21]]],
)
def test_logprobs_of_a_wrong_kind_are_malformed(logprobs: object) -> None:
    fields = {"index": 0, "type": "tokens", "token_ids": [1], "text": "", "logprobs": logprobs}
    with pytest.raises(MalformedMessage, match="logprobs"):
        decode_event(msgpack.packb(fields))


def test_the_longest_prompt_with_logprobs_fits_an_event() -> None:
    # given
    for top in (0, 1, 20):
        likeliest = tuple((2**31 - 1 - i, -i / 3) for i in range(top))
        count = most_prompt_logprobs(top)
        prompt = PromptLogprobs(
            (2**31 - 1,) * count, (TokenLogprob(-0.1, likeliest),) * (count - 1)
        )
        # when
        raw = encode_tokens(0, (5,), "é", [TokenLogprob(-0.1, likeliest)], prompt)
        # then
        assert len(raw) <= MAX_EVENT_BYTES // 2 + 1024


@pytest.mark.parametrize(
    "prompt",
    [5, [[], []], [[1, 2], []], [[1], [[-1.0, []]]], [[1, 2], [[float("nan"), []]]], [["a"], []]],
)
def test_a_prompts_logprobs_of_a_wrong_kind_are_malformed(prompt: object) -> None:
    fields = {"index": 0, "type": "tokens", "token_ids": [1], "text": ""}
    with pytest.raises(MalformedMessage, match="logprobs"):
        decode_event(msgpack.packb(fields | {"prompt_logprobs": prompt}))


def test_an_event_of_a_later_version_may_have_more_fields() -> None:
    # given
    fields = msgpack.unpackb(encode_event(CancelledEvent(index=4))) | {"since": 12}
    # when / then
    assert decode_event(msgpack.packb(fields)) == CancelledEvent(index=4)


@pytest.mark.parametrize(
    "prompt", ["", [], [-1], [2**31], [True], [1.5], 7, None, [{"role": "robot", "content": "x"}]]
)
def test_a_prompt_of_a_wrong_kind_is_refused_without_quoting_it(prompt: object) -> None:
    with pytest.raises(InvalidParameter, match="prompt: must be") as caught:
        decode_job(msgpack.packb({"v": 1, "id": "a", "prompt": prompt}))
    assert "robot" not in str(caught.value)


def test_all_that_is_wrong_with_a_job_is_one_line() -> None:
    # given
    sampling = {"temperature": -1, "top_k": 0, "tempreature": 0.5}
    # when
    with pytest.raises(InvalidParameter) as caught:
        decode_job(msgpack.packb({"id": "0-a", "prompt": "", "sampling": sampling}))
    # then
    assert str(caught.value) == (
        "prompt: must be non-empty text, chat messages (role, content), or token ids; "
        "temperature=-1: must be a number from 0, up to 1000000; "
        "top_k=0: must be an integer from 1, up to 9223372036854775807, or none; "
        "tempreature: no such parameter, did you mean temperature?"
    )


def test_what_is_no_map_is_named_by_its_own_field() -> None:
    """PHP writes an empty map as an array."""
    with pytest.raises(InvalidParameter, match=r"^sampling: .* dictionary"):
        decode_job(msgpack.packb({"id": "0-a", "prompt": "x", "sampling": []}))


def test_sampling_as_older_producers_wrote_it() -> None:
    """They left out what had the default, and 256 tokens were theirs."""
    # given
    old = {"max_new_tokens": 1_000_000, "temperature": 100, "seed": 2**63 - 1, "stop": ["x"] * 16}
    # then
    job = decode_job(msgpack.packb({"v": 1, "id": "a", "prompt": "x", "sampling": old}))
    assert job.sampling == SamplingParams(**old)
    bare = decode_job(msgpack.packb({"v": 1, "id": "a", "prompt": "x"}))
    assert (bare.sampling.max_new_tokens, bare.sampling.temperature) == (256, 0.0)
    assert b"sampling" not in encode_job(bare)


def test_sizes_are_limited_on_both_sides() -> None:
    # given
    big = JobSpec(id="a", prompt="x" * MAX_JOB_BYTES)
    chatty = JobSpec(id="a", prompt="x", metadata={"k": "v" * MAX_METADATA_BYTES})
    # then
    with pytest.raises(JobTooLarge, match="1048576"):
        encode_job(big)
    with pytest.raises(JobTooLarge, match="metadata"):
        encode_job(chatty)
    with pytest.raises(JobTooLarge):
        decode_job(b"\x00" * (MAX_JOB_BYTES + 1))
    with pytest.raises(JobTooLarge, match="metadata"):
        decode_job(msgpack.packb(chatty.model_dump()))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"garbage",
        msgpack.packb([1, 2]),
        msgpack.packb({1: 2}),
        msgpack.packb({b"": 1}),
        msgpack.packb({"id": msgpack.ExtType(4, b"pickle")}),
        b"\x91" * 100_000,
        b"\x81\xa1a\xa1\xff",
        msgpack.packb({"a": 1}) + b"x",
    ],
)
def test_bytes_that_are_no_message_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_job(raw)
    with pytest.raises(MalformedMessage):
        decode_event(raw)
    assert readable_job_id(raw) is None


def test_binary_values_are_called_so() -> None:
    values: list[dict[object, object]] = [
        {"id": "0-a", "prompt": b"x"},
        {"id": "0-a", "metadata": {"a": [b"x"]}},
        {b"id": b"0-a", b"prompt": b"x"},
    ]
    for fields in values:
        with pytest.raises(MalformedMessage, match="as strings"):
            decode_job(msgpack.packb(fields))
        # Who waits for the job hears of it all the same.
        assert readable_job_id(msgpack.packb(fields)) == "0-a"


def test_the_id_of_a_broken_job_can_be_read() -> None:
    assert readable_job_id(msgpack.packb({"id": "0-abc", "prompt": 3})) == "0-abc"
    assert readable_job_id(msgpack.packb({"id": b"\xff"})) is None
    assert readable_job_id(msgpack.packb({"id": "../../etc", "prompt": 3})) is None
    assert readable_job_id(msgpack.packb({"id": "x" * 81})) is None
