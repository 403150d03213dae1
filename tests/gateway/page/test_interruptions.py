"""A page that is reloaded, and workers and gateways that are killed: no character is lost."""

import re
from collections.abc import Callable

import httpx2 as httpx

from tests.gateway.page.conftest import WORKERS, Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.page import (
    SAYING,
    ask,
    echo,
    is_complete,
    job_of,
    of_module,
    until_ended,
    until_written,
    written,
    written_before_handover,
)

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
    assert page.text(".question .said") == SAYING
    assert page.driver.current_url == place


def test_a_second_tab_follows_the_same_answer(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    ask(page, tokens=250)
    until_written(page, 20)
    first, place = page.driver.current_window_handle, page.driver.current_url
    # when
    page.driver.switch_to.new_window("tab")
    second = page.driver.current_window_handle
    page.driver.get(place)
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
    (killed,) = [one.name for one in own_trial.workers if not one.running]
    assert {worker, killed} == set(WORKERS)
    assert written_before_handover(page).strip() == echo(SAYING, int(token))
    assert "2 workers, every token once" in page.text(".answer .facts")
    # and: what has passed is told no longer
    assert not page.one("#notice").is_displayed()
    page.wait(lambda: [one.text for one in page.all("#workers b")] == [worker])
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
    page.wait(lambda: "nothing came twice" in page.text(".answer .facts"))
    until_ended(page)
    assert page.text(".answer .note") == ""
    assert written(page) == echo(SAYING, 250)


def test_an_answer_that_the_server_has_lost_keeps_what_was_read(
    own_trial: Trial, visit: Visit
) -> None:
    # given: a part of it was read, and kept
    page = visit(own_trial)
    ask(page, tokens=2000)
    until_written(page, 100)
    job = job_of(page)
    kept = "(await it.messageOfJob(given[0])).text.length"
    page.wait(lambda: of_module(page, "store", kept, job) > 50)
    page.driver.get("about:blank")
    # when: it is deleted elsewhere
    httpx.post(f"{own_trial.url}v1/responses/resp_{job}/cancel", timeout=90)
    assert httpx.delete(f"{own_trial.url}v1/responses/resp_{job}", timeout=90).status_code == 200
    page.driver.get(f"{own_trial.url}#{job}")
    # then
    until_ended(page, "cut off")
    assert len(written(page)) > 50
    assert echo(SAYING, 2000).startswith(written(page))
