"""A page that is reloaded, and workers and gateways that are killed: no character is lost."""

import re
from collections.abc import Callable

from selenium.webdriver.common.keys import Keys

from tests.gateway.page.conftest import WORKERS, Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.echo import echoed_text as echo
from tests.support.page import SAYING, ask, is_complete, until_ended, until_written, written

pytestmark = needs_chromium
Visit = Callable[[Trial], Browser]


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
