"""The one description of sampling parameters: what it accepts, and what it says of the rest."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidParameter
from rose.protocol import decode_job, encode_job
from rose.sampling import PARAMETERS, Grammar, Parameter, SamplingParams

NUMBERS = [p for p in PARAMETERS if p.range]
#: What goes with a value of the parameter that cannot stand alone.
COMPANY = {"top_logprobs": {"logprobs": True}, "min_new_tokens": {"max_new_tokens": 2**31 - 1}}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": 0}, "max_new_tokens=0: must be an integer from 1, up to 2147483647"),
    ({"max_new_tokens": True}, "max_new_tokens=True: must be an integer"),
    ({"max_new_tokens": 1.5}, "max_new_tokens=1.5"),
    ({"temperature": -0.1}, "temperature=-0.1: must be a number from 0, up to 1000000"),
    ({"temperature": "0.7"}, "temperature: must be a number"),
    ({"tempreature": 0.5}, "tempreature: no such parameter, did you mean temperature\\?"),
    ({"top_k": 0}, "top_k=0: must be an integer from 1, .* or none"),
    ({"top_p": 0.0}, "top_p=0.0: must be a number above 0, up to 1"),
    ({"min_p": 1.0}, "min_p=1.0: must be a number from 0, below 1"),
    ({"seed": "x"}, "seed"),
    ({"stop": "word"}, "stop: must be a list of texts"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 33}, "stop"),
    ({"stop_token_ids": (-1,)}, "stop_token_ids"),
    ({"ignore_eos": 1}, "ignore_eos=1: must be true or false"),
    ({"min_new_tokens": 300}, "min_new_tokens is more than max_new_tokens"),
    ({"logit_bias": [[1, 101.0]]}, "logit_bias"),
    ({"logit_bias": [[1, 1.0], [1, 2.0]]}, "logit_bias names a token id twice"),
    ({"logit_bias": {"1": 1.0}}, "logit_bias"),
    ({"logit_bias": [[i, 1.0] for i in range(1025)]}, "logit_bias"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
    ({"json_schema": {}}, "json_schema"),
    ({"json_schema": "{"}, "json_schema: is no JSON"),
    ({"json_schema": "[" * 60_000}, "json_schema: is no JSON"),
    ({"regex": ""}, "regex"),
    ({"regex": "é" * 40_000}, "regex: has 80000 bytes, the limit is 65536"),
    ({"grammar": ""}, "grammar"),
    ({"grammar": "x" * 65_537}, "grammar"),
    ({"regex": "a", "grammar": "b"}, "only one of json_schema, regex and grammar"),
    ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_an_impossible_value_is_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidParameter, match=says):
        SamplingParams(**wrong)
    with pytest.raises(InvalidParameter, match=says):
        decode_job(msgpack.packb({"v": 1, "id": "a", "prompt": "x", "sampling": wrong}))


def bounds_of(parameter: Parameter) -> dict[str, float]:
    words = dict(part.rsplit(" ", 1) for part in parameter.range.split(", "))
    return {word: parameter.type(value) for word, value in words.items()}


def accepts(parameter: Parameter, value: object) -> bool:
    try:
        params = SamplingParams(**COMPANY.get(parameter.name, {}), **{parameter.name: value})
    except InvalidParameter:
        return False
    return bool(getattr(params, parameter.name) == value)


@pytest.mark.parametrize("parameter", NUMBERS, ids=lambda parameter: parameter.name)
@given(data=st.data())
def test_a_number_is_accepted_where_its_range_says_so(
    parameter: Parameter, data: st.DataObject
) -> None:
    # given
    bounds = bounds_of(parameter)
    kind = st.integers() if parameter.type is int else st.floats()
    value = data.draw(kind | st.sampled_from(list(bounds.values())))
    # then
    inside = {
        "from": lambda bound: value >= bound,
        "above": lambda bound: value > bound,
        "up to": lambda bound: value <= bound,
        "below": lambda bound: value < bound,
    }
    possible = all(inside[word](bound) for word, bound in bounds.items())
    assert accepts(parameter, value) == possible


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.name)
def test_every_parameter_has_a_meaning_and_a_default_that_is_possible(
    parameter: Parameter,
) -> None:
    assert parameter.meaning
    assert accepts(parameter, parameter.default)


def test_lists_become_tuples_and_parameters_survive_the_wire() -> None:
    # given
    params = SamplingParams(
        seed=-(2**63),
        temperature=1e6,
        stop=["a"],  # type: ignore[arg-type]
        logit_bias=[[7, -1.5]],  # type: ignore[arg-type]
        json_schema="{}",
    )
    fields = params.model_dump(exclude_defaults=True)
    job = decode_job(msgpack.packb({"id": "a", "prompt": "x", "sampling": fields}))
    # then
    assert (params.stop, params.logit_bias) == (("a",), ((7, -1.5),))
    assert decode_job(encode_job(job)).sampling == params
    assert params.constraint == Grammar("json_schema", "{}")


def test_a_seed_is_drawn_once() -> None:
    assert SamplingParams(seed=7).seeded() == SamplingParams(seed=7).seeded(8)
    assert SamplingParams().seeded(8) == SamplingParams(seed=8)
    drawn = SamplingParams().seeded()
    assert drawn.seed is not None
    assert drawn.seeded() is drawn
