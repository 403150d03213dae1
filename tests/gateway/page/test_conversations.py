"""The page in a real browser: questions, answers and what is shown beside them."""

import re
from collections.abc import Callable

import httpx2 as httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.gateway.page.conftest import WORKERS, Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.command import run_rose
from tests.support.echo import echoed_text as echo
from tests.support.page import SAYING, ask, is_complete, until_ended, until_written, written

pytestmark = needs_chromium
Visit = Callable[[Trial], Browser]


def test_what_is_typed_is_answered_as_it_is_written(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    # when
    ask(page)
    # then: it can be read before it is whole
    until_written(page, 1)
    assert len(written(page)) < len(echo(SAYING, 150)) or is_complete(page)
    assert page.text(".question") == SAYING
    until_ended(page)
    assert written(page) == echo(SAYING, 150)
    page.wait(lambda: "150 tokens" in page.text(".answer .facts"))
    # and: it stands in the history, and the workers beside their queue
    page.wait(lambda: "150 tokens" in page.text("#jobs li:first-child .state"))
    assert page.text("#jobs li:first-child .title") == SAYING.strip()
    page.wait(lambda: [one.text for one in page.all("#workers b")] == list(WORKERS))
    assert page.text("#batch").endswith("of 16")


def test_the_gauges_show_what_the_workers_do(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    ask(page, tokens=2000)

    page.wait(lambda: page.text("#batch") == "1 of 16")
    page.wait(lambda: int(page.text("#rate").replace(",", "")) > 0)
    assert page.script("return document.getElementById('occupancy').value") == 1 / 16
    assert len(page.all("#workers li.busy")) == 1
    page.one("#stop").click()
    until_ended(page, "stopped")
    page.wait(lambda: page.text("#batch") == "0 of 16")


def test_a_conversation_goes_on(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    ask(page, "one ", tokens=16)
    until_ended(page)
    first = page.driver.current_url

    ask(page, "two ", tokens=40)
    page.wait(lambda: page.driver.current_url != first)
    until_ended(page)

    assert [one.text.strip() for one in page.all(".question")] == ["one", "two"]
    assert written(page) == echo("one " + echo("one ", 16) + "two ", 40)
    # and: the way back
    page.driver.back()
    page.wait(lambda: written(page) == echo("one ", 16))


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_an_answer_can_be_stopped_and_the_conversation_goes_on(
    trial: Trial, visit: Visit, by: str
) -> None:
    # given
    page = visit(trial)
    ask(page, tokens=2000)
    until_written(page, 5)
    # when
    if by == "button":
        page.one("#stop").click()
    else:
        page.one("#input").send_keys(Keys.ESCAPE)
    # then
    until_ended(page, "stopped")
    assert page.one("#send").is_displayed()
    assert not page.one("#stop").is_displayed()
    so_far = written(page)
    assert so_far
    assert echo(SAYING, 2000).startswith(so_far)
    # and
    whole = SAYING + so_far + "more"
    ask(page, "more", tokens=len(whole))
    until_ended(page)
    assert written(page) == echo(whole, len(whole))


def test_a_text_can_be_continued_without_a_chat(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    page.one("input[value=prompt]").click()

    ask(page, tokens=90)
    until_written(page, 10)
    page.driver.refresh()

    until_ended(page)
    assert written(page) == echo(SAYING, 90)
    page.wait(lambda: page.text("#jobs li:first-child .title") == "Text")


def test_no_text_ever_becomes_markup(trial: Trial, visit: Visit) -> None:
    # given: a model and its user say such things
    markup = "<img src=x onerror=alert(1)><script>alert(2)</script> "
    said = [{"role": role, "content": markup} for role in ("assistant", "user")]
    body = {"model": "null", "input": said, "max_output_tokens": 16}
    job = httpx.post(f"{trial.url}v1/responses", json=body, timeout=90).headers["x-rose-job-id"]
    # when
    page = visit(trial)
    page.driver.get(f"{trial.url}#{job}")
    until_ended(page)
    # then
    shown = [one.text.strip() for one in page.all(".earlier .text, .question")]
    assert shown == 2 * [markup.strip()]
    page.wait(lambda: page.text("#jobs li:first-child .title") == markup.strip())
    assert page.all("main img, main script, #jobs img, #jobs script") == []


def test_an_answer_that_is_not_there_says_so(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    page.driver.get(f"{trial.url}#0-nothing")

    page.wait(lambda: "not kept any more" in page.text("#notice"))


def test_it_asks_nobody_but_its_own_server(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    ask(page, tokens=16)
    until_ended(page)

    asked = page.script("return performance.getEntriesByType('resource').map((one) => one.name)")

    assert asked
    assert all(one.startswith(trial.url) for one in asked), asked


def test_a_wrong_key_is_told_and_a_right_one_remembered(
    own_trial: Trial, chromium: Browser
) -> None:
    # given
    page = chromium
    made = run_rose("keys", "create", "k", "--json", "--redis-url", own_trial.redis_url)
    secret = re.search(r'"secret": "([^"]+)"', made.stdout)[1]
    page.wait(lambda: httpx.get(f"{own_trial.url}v1/models", timeout=90).status_code == 401)
    page.driver.get(own_trial.url)
    page.wait(lambda: page.one("#key-dialog").get_attribute("open"))
    assert page.text("#key-error") == ""
    # when
    page.one("#secret").send_keys("rose-000000000000-" + 24 * "a" + Keys.ENTER)
    # then
    page.wait(lambda: "not known" in page.text("#key-error"))
    assert page.all("#model option") == []
    # and when
    page.one("#secret").send_keys(secret)
    page.one("#keep").click()
    page.one("#key-form button[type=submit]").click()
    page.wait(lambda: page.all("#model option"))
    ask(page, tokens=16)
    until_ended(page)
    # then: a new tab knows it
    page.driver.switch_to.new_window("tab")
    page.driver.get(own_trial.url)
    page.wait(lambda: page.all("#jobs li"))
    page.script("localStorage.clear()")
    page.driver.close()
    page.driver.switch_to.window(page.driver.window_handles[0])
