"""The list of conversations: found, renamed, deleted, taken away and brought back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
from selenium.webdriver.common.keys import Keys

from tests.gateway.page.conftest import Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.page import (
    SAYING,
    ask,
    echo,
    job_of,
    of_module,
    titles,
    until_ended,
    until_written,
    version,
    written,
)

pytestmark = needs_chromium
Visit = Callable[[Trial], Browser]


def exported(title: str, said: str, number: int = 0) -> dict[str, Any]:
    return {
        "format": "roseinfer-conversation",
        "version": 1,
        "conversation": {
            "id": f"c{number}",
            "kind": "chat",
            "title": title,
            "system": "",
            "leaf": "a",
            "created": number,
            "updated": number,
        },
        "messages": [
            {"id": "q", "parent": None, "role": "user", "created": 1, "text": said},
            {
                "id": "a",
                "parent": "q",
                "role": "assistant",
                "created": 2,
                "text": f"Answer {number}",
                "model": "null",
                "status": "completed",
            },
        ],
    }


def keep(page: Browser, *conversations: dict[str, Any]) -> None:
    """As if they had been imported one after another."""
    texts = [json.dumps(one) for one in conversations]
    call = (
        "(async () => { for (const text of given[0]) await it.Conversation.import(text, ''); })()"
    )
    of_module(page, "conversation", call, texts)
    page.driver.refresh()
    page.wait(lambda: titles(page))


def downloaded(page: Browser, folder: Path, button: str, ending: str) -> Path:
    allow = {"behavior": "allow", "downloadPath": str(folder)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)
    page.one("#open-menu").click()
    page.one(button).click()
    found: Path = page.wait(lambda: next(iter(folder.glob(f"*.{ending}")), None))
    return found


def test_a_conversation_is_renamed_and_found_by_what_was_said(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)
    keep(page, exported("Cows", "are they shy?"), exported("Trains", "the red one", 1))
    ask(page, tokens=16)
    until_ended(page)
    # when
    page.one("#open-menu").click()
    page.one("#rename").click()
    page.one("#name").clear()
    page.one("#name").send_keys("Foxes" + Keys.ENTER)
    # then
    page.wait(lambda: titles(page) == ["Foxes", "Trains", "Cows"])
    assert page.text("#title") == "Foxes"
    # and: each is found by a word of its title, of a question, of an answer
    for words, wanted in {
        "foxes": ["Foxes"],
        "SHY": ["Cows"],
        "answer 1": ["Trains"],
        "32 113": ["Foxes"],
        "nowhere": [],
        "": ["Foxes", "Trains", "Cows"],
    }.items():
        page.one("#search").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE, words)
        page.wait(lambda wanted=wanted: titles(page) == wanted)
    # and: it is still called so tomorrow
    page.driver.refresh()
    page.wait(lambda: titles(page) == ["Foxes", "Trains", "Cows"])


def test_the_list_has_no_end(trial: Trial, visit: Visit) -> None:
    page = visit(trial)
    keep(page, *(exported(f"No. {number}", "hm", number) for number in range(95)))
    page.wait(lambda: titles(page)[:2] == ["No. 94", "No. 93"])

    end = "const list = document.getElementById('list'); list.scrollTop = list.scrollHeight"
    page.wait(lambda: page.script(end) or titles(page)[-1] == "No. 0")

    assert titles(page) == [f"No. {number}" for number in reversed(range(95))]
    assert not page.one("#more").is_displayed()


def test_a_deleted_conversation_is_gone_here_and_on_the_server(trial: Trial, visit: Visit) -> None:
    # given: one that is written
    page = visit(trial)
    ask(page, tokens=2000)
    until_written(page, 5)
    job = job_of(page)
    # when: first not, then it is
    for answer, left in (("[data-close]", 1), ("[value=delete]", 0)):
        page.one("#open-menu").click()
        page.one("#delete").click()
        page.one(f"#delete-dialog {answer}").click()
        page.wait(lambda left=left: len(titles(page)) == left)
    # then
    assert page.all(".answer") == []
    page.wait(
        lambda: httpx.get(f"{trial.url}v1/responses/resp_{job}", timeout=90).status_code == 404
    )
    page.driver.refresh()
    page.wait(lambda: page.one("#no-conversations").is_displayed())


def test_it_is_exported_and_comes_back_as_it_was(
    trial: Trial, visit: Visit, tmp_path: Path
) -> None:
    # given: two branches
    page = visit(trial)
    ask(page, tokens=16)
    until_ended(page)
    first = job_of(page)
    page.one(".answer .buttons button:last-child").click()
    page.wait(lambda: job_of(page) != first)
    until_ended(page)
    # when
    markdown = downloaded(page, tmp_path, "#export-markdown", "md").read_text()
    kept = downloaded(page, tmp_path, "#export-json", "json")
    # then
    assert markdown.split("\n\n", 3)[:3] == [f"# {SAYING.strip()}", "## You", f"{SAYING}"]
    assert "## null" in markdown
    assert echo(SAYING, 16) in markdown
    assert len(json.loads(kept.read_text())["messages"]) == 3
    # and when
    page.one("#new").click()
    page.one("#imported").send_keys(str(kept))
    page.wait(lambda: titles(page) == 2 * [SAYING.strip()])
    # then
    assert written(page) == echo(SAYING, 16)
    assert version(page, ".answer") == "2/2"
    # and: it goes on
    ask(page, "more", tokens=16)
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)


def test_what_is_no_conversation_is_not_imported(
    trial: Trial, visit: Visit, tmp_path: Path
) -> None:
    page = visit(trial)
    wrong = exported("wrong", "hm")
    wrong["messages"][1]["text"] = 7
    circle = exported("circle", "hm")
    circle["messages"][0]["parent"] = "a"
    for number, (content, reason) in enumerate(
        {
            "{": "it is no JSON",
            "[]": "it is no roseinfer-conversation of version 1",
            json.dumps(wrong): "its message 2 is none",
            json.dumps(circle): "its messages follow each other in a circle",
        }.items()
    ):
        path = tmp_path / f"{number}.json"
        path.write_text(content)
        page.one("#imported").send_keys(str(path))
        page.wait(
            lambda number=number, reason=reason: (
                f"{number}.json was not imported: {reason}" in page.text("#notice")
            )
        )
    assert titles(page) == []
