"""OpenAI's parameters as those of a job."""

import json
from typing import Any

import pytest

from rose.sampling import SamplingParams
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.sampling import (
    DetailedSamplingRequest,
    ResponseFormat,
    checked,
    format_fields,
    sampling_fields,
)


class Request(DetailedSamplingRequest):
    response_format: ResponseFormat | None = None


def fields(*, max_new_tokens: int = 100, **given: Any) -> dict[str, Any]:
    request = parse(Request, json.dumps(given).encode())
    own = sampling_fields(request, max_new_tokens=max_new_tokens)
    return checked(own, response_format=format_fields(request.response_format, []))


def test_what_is_absent_or_null_is_openai_s_default() -> None:
    nulls = dict.fromkeys(set(Request.model_fields), None)

    assert fields() == fields(**nulls) == {"max_new_tokens": 100, "temperature": 1.0}


def test_every_parameter_arrives() -> None:
    made = fields(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=1.1,
        no_repeat_ngram_size=3,
        min_tokens=2,
        stop_token_ids=[7],
        ignore_eos=True,
        seed=-4,
        stop=["\n", "END"],
        logit_bias={"5": -100, "6": 1.5},
    )

    params = SamplingParams(**made)
    assert params == SamplingParams(
        max_new_tokens=100,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=1.0,
        frequency_penalty=-1.5,
        repetition_penalty=1.1,
        no_repeat_ngram_size=3,
        min_new_tokens=2,
        stop_token_ids=(7,),
        ignore_eos=True,
        seed=-4,
        stop=("\n", "END"),
        logit_bias=((5, -100.0), (6, 1.5)),
    )


@pytest.mark.parametrize(
    ("given", "made"),
    [
        *(({name: "[ab]+"}, {name: "[ab]+"}) for name in ("regex", "grammar")),
        ({"stop": "\n"}, {"stop": ("\n",)}),
        ({"stop": ["", "a"]}, {"stop": ("a",)}),
        # an empty one stops nothing
        *(({"stop": nothing}, {}) for nothing in ("", [])),
        ({"stop": [""]}, {"stop": ()}),
        # that is all tokens
        *(({"top_k": top_k}, {}) for top_k in (0, -1)),
        ({"response_format": {"type": "text"}}, {}),
    ],
)
def test_a_value_arrives_in_the_form_of_a_job(given: dict[str, Any], made: dict[str, Any]) -> None:
    assert fields(**given) == fields() | made


def test_top_p_of_zero_leaves_the_likeliest_token() -> None:
    assert 0 < fields(top_p=0)["top_p"] < 1e-6


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "value": {"enum": [1]}}, {"enum": [1]}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1]}}},
            {"enum": [1]},
        ),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, {"type": "object"}),
    ],
)
def test_a_format_is_a_schema(wanted: dict[str, Any], schema: dict[str, Any]) -> None:
    assert json.loads(fields(response_format=wanted)["json_schema"]) == schema


@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        ({"json": {"enum": [1]}}, {"json_schema": '{"enum": [1]}'}),
        ({"json": '{"enum": [1]}', "regex": None}, {"json_schema": '{"enum": [1]}'}),
        ({"json_object": True}, {"json_schema": '{"type": "object"}'}),
        ({"regex": "[ab]", "json_object": False}, {"regex": "[ab]"}),
        ({"choice": ["yes", "a (b)\n"]}, {"regex": "yes|a \\(b\\)\n"}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
    ],
)
def test_structured_outputs_are_said_as_to_vllm(
    wanted: dict[str, Any], made: dict[str, Any]
) -> None:
    assert fields(structured_outputs=wanted) == fields() | made


@pytest.mark.parametrize(
    ("kind", "value"),
    [("json", {"type": "integer"}), ("regex", "a+"), ("choice", ["a", "b"]), ("grammar", "x: A")],
)
def test_structured_outputs_may_have_their_older_names(kind: str, value: Any) -> None:
    older = fields(**{f"guided_{kind}": value})

    assert older == fields(structured_outputs={kind: value})
    assert len(older) == 3
    # guidance's client for vLLM says both
    assert fields(structured_outputs={kind: value}, **{f"guided_{kind}": value}) == older


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 3}, "stop"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"min_tokens": 101}, "min_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_object", "value": {"enum": ["x" * 70_000]}}},
            "response_format.value",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"enum": ["x" * 70_000]}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"regex": "a", "grammar": "start: A"}, "grammar"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "x" * 70_000}, "regex"),
        ({"nonsense": 1}, "nonsense"),
        # structured outputs that contradict themselves
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "regex": "b"}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"structured_outputs": {"choice": ["a" * 70_000]}}, "structured_outputs.choice"),
        # older names that contradict others
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "guided_regex"),
        ({"guided_choice": ["a"], "regex": "a"}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
    ],
)
def test_impossible_values_are_refused_by_their_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        fields(**given)

    assert refused.value.param == param
    assert refused.value.status == 400
