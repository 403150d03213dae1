"""The page in a real browser: questions, answers and what is shown beside them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.gateway.page.conftest import WORKERS, Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.command import run_rose
from tests.support.echo import echoed_text
from tests.support.page import (
    SAYING,
    ask,
    echo,
    is_complete,
    job_of,
    titles,
    until_ended,
    until_written,
    version,
    written,
)

pytestmark = needs_chromium
DOCS = Path(__file__).parents[3] / "docs" / "chat-page.md"
Visit = Callable[[Trial], Browser]


def test_what_is_typed_is_answered_as_it_is_written(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    # when
    ask(page)
    # then: it can be read before it is whole
    until_written(page, 1)
    assert len(written(page)) < len(echo(SAYING, 150)) or is_complete(page)
    assert page.text(".question .said") == SAYING
    until_ended(page)
    assert written(page) == echo(SAYING, 150)
    page.wait(lambda: "150 tokens" in page.text(".answer .facts"))
    assert re.search(r"[\d.]+ tokens/s · first after [\d.]+ s", page.text(".answer .facts"))
    # and: it stands in the list, and the workers beside their queue
    page.wait(lambda: titles(page) == [SAYING.strip()])
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
    # given
    page = visit(trial)
    ask(page, "one ", tokens=16)
    until_ended(page)
    # when
    ask(page, "two ", tokens=40)
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)
    # then: it is one entry
    whole = "one " + echoed_text("one ", 16) + "two "
    assert [one.text.strip() for one in page.all(".question .said")] == ["one", "two"]
    assert written(page) == echo(whole, 40)
    page.wait(lambda: titles(page) == ["one"])
    # and: the way back is to the conversation before
    page.one("#new").click()
    assert page.all(".answer") == []
    page.driver.back()
    page.wait(lambda: len(page.all(".answer")) == 2)
    assert written(page) == echo(whole, 40)


def test_a_conversation_goes_on_when_the_server_has_forgotten_it(
    trial: Trial, visit: Visit
) -> None:
    page = visit(trial)
    ask(page, "one ", tokens=16)
    until_ended(page)
    httpx.delete(f"{trial.url}v1/responses/resp_{job_of(page)}", timeout=90)
    page.driver.refresh()
    until_ended(page)

    ask(page, "two ", tokens=40)
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)

    assert written(page) == echo("one " + echoed_text("one ", 16) + "two ", 40)


def test_a_page_goes_on_when_the_data_of_its_site_is_cleared(trial: Trial, visit: Visit) -> None:
    # given: an answer is being written
    page = visit(trial)
    ask(page, "one ", tokens=150)
    until_written(page, 1)
    # when
    page.clear_data(trial.url)
    until_ended(page)
    page.one("#new").click()
    ask(page, "two ", tokens=16)
    until_ended(page)
    # then
    page.wait(lambda: titles(page) == ["two"])
    assert written(page) == echo("two ", 16)


def test_it_opens_in_another_browser_by_its_address(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    ask(page, "one ", tokens=16)
    until_ended(page)
    ask(page, "two ", tokens=40)
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)
    answer, place = written(page), page.driver.current_url
    # when: another browser has kept nothing
    page.forget()
    page.driver.get(place)
    # then
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)
    assert [one.text.strip() for one in page.all(".question .said")] == ["one", "two"]
    assert written(page) == answer
    page.wait(lambda: titles(page) == ["one"])


def test_an_answer_is_written_again_and_a_question_edited(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    ask(page, "one ", tokens=16)
    until_ended(page)
    first = job_of(page)
    # when: another answer to the same
    page.one(".answer .buttons button:last-child").click()
    page.wait(lambda: job_of(page) != first)
    until_ended(page)
    # then
    assert written(page) == echo("one ", 16)
    assert version(page, ".answer") == "2/2"
    # and when: the first one, and after a reload, too
    page.one(".answer .branches button").click()
    page.wait(lambda: job_of(page) == first)
    page.driver.refresh()
    until_ended(page)
    assert version(page, ".answer") == "1/2"
    # and when: another question
    page.one("[aria-label='Edit the message']").click()
    page.one(".editing textarea").clear()
    page.one(".editing textarea").send_keys("other " + Keys.ENTER)
    page.wait(lambda: page.text(".question .said") == "other ")
    until_ended(page)
    # then: both branches are there
    assert written(page) == echo("other ", 16)
    assert version(page, ".question") == "2/2"
    page.one(".question .branches button").click()
    page.wait(lambda: page.text(".question .said") == "one ")
    assert written(page) == echo("one ", 16)


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
    so_far = echoed_text(SAYING, len(written(page).split()))
    assert written(page) == so_far.strip() != ""
    # and
    whole = SAYING + so_far + "more"
    ask(page, "more", tokens=len(whole))
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)
    assert written(page) == echo(whole, len(whole))


def test_a_text_can_be_continued_without_a_chat(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    page.one("#new-text").click()
    # when
    ask(page, tokens=30)
    until_written(page, 10)
    page.driver.refresh()
    # then: the prompt is there
    until_ended(page)
    assert page.text(".question .said") == SAYING
    assert written(page) == echo(SAYING, 30)
    page.wait(lambda: titles(page) == [SAYING.strip()])
    # and: it goes on with all of it
    ask(page, "and", tokens=170)
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)
    assert written(page) == echo(SAYING + echoed_text(SAYING, 30) + "and", 170)


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
    shown = page.script(
        "return [...document.querySelectorAll('.answer:first-child .text, .said')]"
        ".map((one) => one.textContent.trim())"
    )
    assert shown == 2 * [markup.strip()]
    page.wait(lambda: titles(page) == [markup.strip()])
    assert page.all("main img, main script, #conversations img, #conversations script") == []


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


def test_it_weighs_what_its_page_says(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    weight = page.script(
        "const parts = performance.getEntriesByType('resource').concat("
        "  performance.getEntriesByType('navigation'));"
        "return parts.filter((one) => !one.name.includes('/v1/'))"
        "  .reduce((sum, one) => sum + one.decodedBodySize, 0)"
    )
    said = re.search(r"Opening it loads\s+(\d+) KiB", DOCS.read_text())

    assert said is not None
    assert weight / 1024 == pytest.approx(int(said[1]), abs=2)


@pytest.fixture
def locked(own_trial: Trial, chromium: Browser) -> Iterator[Browser]:
    """On the page of a gateway that asks for a key. It leaves nothing in the browser."""
    yield chromium
    chromium.complaints()
    chromium.forget()


def created_key(trial: Trial, name: str) -> str:
    made = run_rose("keys", "create", name, "--json", "--redis-url", trial.redis_url)
    found = re.search(r'"secret": "([^"]+)"', made.stdout)
    assert found is not None, made.stdout
    return found[1]


def test_each_key_has_its_own_conversations(own_trial: Trial, locked: Browser) -> None:
    # given
    page = locked
    first, second = created_key(own_trial, "one"), created_key(own_trial, "two")
    page.wait(lambda: httpx.get(f"{own_trial.url}v1/models", timeout=90).status_code == 401)
    page.driver.get(own_trial.url)
    # when: each asks
    for secret in (first, second):
        page.wait(lambda: page.one("#key-dialog").get_attribute("open"))
        page.one("#secret").send_keys(secret + Keys.ENTER)
        page.wait(lambda: page.all("#model option"))
        page.wait(lambda: titles(page) == [])
        ask(page, secret[5:17], tokens=16)
        until_ended(page)
        page.one("#key").click()
    # then: the first is known, and has its own
    page.one(f"#known option:nth-child({2 + [first, second].index(first)})").click()
    page.one("#key-form button[type=submit]").click()
    page.wait(lambda: titles(page) == [first[5:17]])
    assert page.all(".answer") == []
    # and when: it is forgotten
    page.one("#key").click()
    page.one("#key-forget").click()
    assert [one.text for one in page.all("#known option")] == ["No key", second[5:17]]


def test_a_wrong_key_is_told_and_a_right_one_remembered(own_trial: Trial, locked: Browser) -> None:
    # given
    page = locked
    secret = created_key(own_trial, "k")
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
    page.wait(lambda: titles(page) == [SAYING.strip()])
