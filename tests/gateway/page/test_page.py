"""The page in a real browser: what a person does with it.

The null engine echoes: each character that must be there is known, and its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.gateway.page.conftest import WORKERS, Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.command import run_rose
from tests.support.echo import echoed_text as echo

pytestmark = needs_chromium

Visit = Callable[[Trial], Browser]

SAYING = "the quick brown fox jumps over the lazy dog, "


def ask(page: Browser, text: str = SAYING, tokens: int = 150) -> None:
    page.script("document.getElementById('length').value = arguments[0]", tokens)
    page.one("#input").send_keys(text + Keys.ENTER)
    page.wait(lambda: "/#" in page.driver.current_url)


def written(page: Browser) -> str:
    """The last answer's text without the notes in it."""
    return str(
        page.script(
            "const text = [...document.querySelectorAll('.answer .text')].at(-1)?.cloneNode(true);"
            "text?.querySelectorAll('.handover').forEach((one) => one.remove());"
            "return text?.textContent ?? ''"
        )
    )


def until_written(page: Browser, characters: int) -> None:
    page.wait(lambda: len(written(page)) >= characters)


def until_ended(page: Browser, word: str = "complete") -> None:
    page.wait(lambda: page.text(".answer .facts").startswith(word))


def is_complete(page: Browser) -> bool:
    """This browser may be slower than the model."""
    return page.text(".answer .facts").startswith("complete")


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


def test_a_reload_in_mid_sentence_loses_nothing(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    ask(page)
    until_written(page, 20)
    place = page.driver.current_url
    # when
    page.driver.refresh()
    # then
    until_written(page, 20)
    assert "being written" in page.text(".answer .facts") or is_complete(page)
    until_ended(page)
    assert written(page) == echo(SAYING, 150)
    assert page.text(".question") == SAYING
    assert page.driver.current_url == place


def test_a_second_tab_follows_the_same_answer(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    ask(page, tokens=250)
    until_written(page, 20)
    first = page.driver.current_window_handle
    # when
    page.one(".answer footer a").send_keys(Keys.ENTER)  # a click may miss it, since it moves
    page.wait(lambda: len(page.driver.window_handles) == 2)
    (second,) = set(page.driver.window_handles) - {first}
    page.driver.switch_to.window(second)
    until_written(page, 20)
    # then
    for tab in (second, first):
        page.driver.switch_to.window(tab)
        until_ended(page)
        assert written(page) == echo(SAYING, 250)


def test_a_killed_worker_costs_a_pause_and_no_token(own_trial: Trial, visit: Visit) -> None:
    # given
    page = visit(own_trial)
    page.wait(lambda: page.one("#kill").is_displayed())
    ask(page, tokens=250)
    page.wait(lambda: "1 of" in page.text("#workers"))  # it is known who is at work
    # when
    page.one("#kill").click()
    # then
    note = page.one(".handover").text
    until_ended(page)
    assert written(page) == echo(SAYING, 250)
    token, worker = re.fullmatch(r".*went on at token (\d+) on (worker-[ab])", note).groups()
    killed = page.text("#notice").partition(" ")[0]
    assert {worker, killed} == set(WORKERS)
    before = "return document.querySelector('.handover').previousSibling.textContent"
    assert page.script(before) == echo(SAYING, int(token))
    assert "2 workers, every token once" in page.text(".answer .facts")
    # and: who comes later sees it, too
    page.driver.refresh()
    page.wait(lambda: page.text(".handover") == note.removeprefix("⤳ "))
    assert written(page) == echo(SAYING, 250)


def test_a_killed_gateway_costs_a_pause_and_no_token(own_trial: Trial, visit: Visit) -> None:
    # given
    page = visit(own_trial)
    ask(page, tokens=250)
    until_written(page, 20)
    # when
    own_trial.gateway.kill()
    page.wait(lambda: "The connection is gone" in page.text(".answer .note"))
    own_trial.gateway.start()
    # then
    page.wait(lambda: "nothing came twice" in page.text(".answer .note"))
    until_ended(page)
    assert written(page) == echo(SAYING, 250)


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


def test_all_of_it_can_be_done_with_the_keyboard(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)

    def press(*keys: str) -> str:
        ActionChains(page.driver).send_keys(*keys).perform()
        here = (
            "const e = document.activeElement;"
            "return e.id || (e.closest('#jobs') ? 'job ' : '') + (e.hash || e.name || e.tagName)"
        )
        return str(page.script(here))

    # when: it begins where one types
    assert page.script("return document.activeElement.id") == "input"
    page.script("document.getElementById('length').value = 16")
    press(SAYING, Keys.ENTER)
    until_ended(page)
    # then: everything has its turn, with a name and a visible focus
    order = []
    page.script("document.getElementById('skip').focus()")
    ring = "return getComputedStyle(document.activeElement).outlineStyle"
    while (here := press(Keys.TAB)) not in (*order, "BODY", "skip"):
        order.append(here)
        assert page.script(ring) != "none", here
    wanted = ["key", "new", "kill", "turns", "input", "model", "length", "temperature", "send"]
    places = [order.index(one) for one in wanted]
    assert places == sorted(places), order
    assert any(one.startswith("job #") for one in order)
    # and: a new conversation, and back to a line of the history
    page.script("document.getElementById('new').focus()")
    assert press(Keys.ENTER) == "input"
    assert page.all(".answer") == []
    page.script("document.querySelector('#jobs a').focus()")
    press(Keys.ENTER)
    until_ended(page)
    assert written(page) == echo(SAYING, 16)


def test_every_control_has_a_name_for_those_who_hear_the_page(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    ask(page, tokens=16)
    until_ended(page)
    controls = "button, a, input, select, textarea, meter, dialog, section, aside, article, [role]"

    def nameless() -> tuple[list[str], ...]:
        shown = [one for one in page.all(controls) if one.is_displayed()]
        spoken = [one for one in shown if one.aria_role not in ("alert", "status", "note")]
        return ([str(one.get_attribute("id")) for one in spoken if not one.accessible_name],)

    assert page.wait(nameless) == ([],)
    assert page.text("#said") == "The answer is complete up to the limit of tokens."


@pytest.mark.parametrize(("width", "height"), [(320, 568), (480, 800), (860, 600)])
def test_a_narrow_window_shows_all_without_scrolling_sideways(
    trial: Trial, visit: Visit, width: int, height: int
) -> None:
    # given
    page = visit(trial)
    page.resize(width, height)
    # when
    ask(page, "nowbreakhere" * 12, tokens=150)
    until_ended(page)
    # then
    for selector in ("html", "body", "#turns"):
        wide = (
            f"const e = document.querySelector('{selector}');return e.scrollWidth - e.clientWidth"
        )
        assert page.script(wide) <= 0, selector
    for selector in ("#input", "#send", "#rate", "#workers", "#key"):
        box = page.one(selector).rect
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= width, selector
        assert box["y"] + box["height"] <= height, selector
    # and: the history is a button away
    assert not page.one("#history").is_displayed()
    page.one("#show-history").click()
    assert page.one("#show-history").get_attribute("aria-expanded") == "true"
    page.one("#jobs a").click()
    page.wait(lambda: not page.one("#history").is_displayed())


def test_it_is_readable_in_the_dark_and_in_the_light(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    ask(page, tokens=16)
    until_ended(page)
    papers = {}
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        papers[scheme] = page.script("return getComputedStyle(document.body).backgroundColor")
        for selector in (
            *("h1", ".question", ".answer .text", ".facts", ".answer a", "#hint", "#send", "#kill"),
            *("#jobs .title", "#jobs .state", "#workers li", "dt"),
        ):
            assert contrast(page, selector) >= 4.5, (scheme, selector)

    assert len(set(papers.values())) == 2


def contrast(page: Browser, selector: str) -> float:
    """Of a text and what is behind it, as WCAG 2 computes it."""
    colours = page.script(
        "let e = document.querySelector(arguments[0]); const ink = getComputedStyle(e).color;"
        "let paper = 'rgba(0, 0, 0, 0)';"
        "for (; e && /, 0\\)$/.test(paper); e = e.parentElement)"
        "  paper = getComputedStyle(e).backgroundColor;"
        "return [ink, paper]",
        selector,
    )
    lights = sorted(map(_luminance, colours))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: Any) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
