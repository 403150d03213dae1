"""What is asked for: models, parameters, the system prompt, colours; and that it is remembered."""

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
from selenium.webdriver.common.keys import Keys

from rose_gateway.responses.schema import CreateResponse
from tests.gateway.page.conftest import Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.page import ask, choose, job_of, until_ended

pytestmark = needs_chromium
Visit = Callable[[Trial], Browser]

#: Those whose limit is the greatest number that a page knows exactly.
_LONG = {"top_k", "seed"}
_SAFE = 2**53 - 1


def response(trial: Trial, page: Browser) -> Any:
    url = f"{trial.url}v1/responses/resp_{job_of(page)}"
    return httpx.get(url, timeout=90).json()


def test_the_form_has_the_limits_of_the_api(studio: Trial, visit: Visit) -> None:
    # given
    page = visit(studio)
    fields = CreateResponse.model_json_schema()["properties"]
    # when
    inputs = page.script(
        "return [...document.querySelectorAll('[data-parameter]')]"
        ".map((one) => [one.dataset.parameter, Number(one.min), Number(one.max), one.step])"
    )
    # then
    assert len(inputs) == 9
    for name, least, most, step in inputs:
        (schema,) = [one for one in fields[name]["anyOf"] if one["type"] != "null"]
        assert (step == "any") == (schema["type"] == "number"), name
        if name in _LONG:
            assert schema["maximum"] >= most == _SAFE
            assert least == max(schema["minimum"], -_SAFE)
            continue
        if "exclusiveMinimum" in schema:
            assert 0 < least - schema["exclusiveMinimum"] <= 1e-5, name
        else:
            assert least == schema["minimum"], name
        if "exclusiveMaximum" in schema:
            assert 0 < schema["exclusiveMaximum"] - most <= 1e-5, name
        else:
            assert most == schema["maximum"], name


def test_what_is_set_is_asked_for_and_remembered(studio: Trial, visit: Visit) -> None:
    # given
    page = visit(studio)
    page.one("#open-settings").click()
    wanted = {"top_p": 0.9, "presence_penalty": -1.5, "frequency_penalty": 0.25, "temperature": 0.3}
    for name, value in wanted.items():
        field = page.one(f"[data-parameter={name}]")
        field.clear()
        field.send_keys(str(value))
    page.one("#system").send_keys("Be brief.")
    page.one("#stops").send_keys("###")
    page.one("#settings-form button[type=submit]").click()
    # when: after a reload, too
    for _ in range(2):
        page.one("#new").click()
        ask(page, tokens=16)
        until_ended(page)
        # then
        shown = response(studio, page)
        assert {name: shown[name] for name in wanted} == wanted
        assert shown["instructions"] == "Be brief."
        assert shown["max_output_tokens"] == 16
        page.driver.refresh()
        page.wait(lambda: page.all("#model option"))
        assert page.one("#stops").get_attribute("value") == "###"
    # and when: all of it is as at first
    page.one("#open-settings").click()
    page.one("#defaults").click()
    assert page.one("#temperature").get_attribute("value") == "0.7"
    assert page.one("#stops").get_attribute("value") == ""


def test_what_is_out_of_its_limits_is_not_asked_for(studio: Trial, visit: Visit) -> None:
    page = visit(studio)
    for field, wrong in (("#temperature", "3"), ("#tools", "[{]"), ("#tools", '{"name": "f"}')):
        page.one("#open-settings").click()
        page.one(field).clear()
        page.one(field).send_keys(wrong)
        page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        page.wait(lambda: not page.one("#settings").get_attribute("open"))

        page.one("#input").send_keys("hm" + Keys.ENTER)

        page.wait(lambda: page.one("#settings").get_attribute("open"))
        assert page.script("return document.activeElement.id") == field[1:]
        assert page.all(".question") == []
        assert page.one("#input").get_attribute("value") == "hm"
        page.one("#defaults").click()
        page.one("#settings-form button[type=submit]").click()
        page.one("#input").clear()


def test_models_that_generate_are_offered_and_the_choice_is_remembered(
    studio: Trial, visit: Visit
) -> None:
    # given
    page = visit(studio)
    served = [one["id"] for one in httpx.get(f"{studio.url}v1/models", timeout=90).json()["data"]]
    # then: an encoder is none of them
    assert served == ["null", "null-encoder", "scripted"]
    assert [one.text for one in page.all("#model option")] == ["null", "scripted"]
    # and when
    ask(page, "a", tokens=16)
    until_ended(page)
    place = page.driver.current_url
    choose(page, "#model", "scripted")
    page.driver.refresh()
    page.wait(lambda: page.all("#model option"))
    until_ended(page)
    # then: a conversation has its own, and a new one the last choice
    chosen = "return document.getElementById('model').value"
    assert page.driver.current_url == place
    assert page.script(chosen) == "null"
    page.one("#new").click()
    page.driver.refresh()
    page.wait(lambda: page.script(chosen) == "scripted")


def test_the_colours_can_be_switched_and_are_remembered(studio: Trial, visit: Visit) -> None:
    page = visit(studio)
    paper = "return getComputedStyle(document.body).backgroundColor"
    page.prefer("light")
    light = page.script(paper)
    page.prefer("dark")
    dark = page.script(paper)
    assert light != dark

    choose(page, "#theme", "light")
    assert page.script(paper) == light
    page.driver.refresh()
    assert page.script(paper) == light
    choose(page, "#theme", "")
    assert page.script(paper) == dark
