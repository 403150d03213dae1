"""What an answer shows: Markdown, code, thoughts, calls, takeovers, and how fast it was."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.gateway.page.conftest import Trial, running_studio
from tests.support.browser import Browser, needs_chromium
from tests.support.page import (
    MARKDOWN,
    ask,
    echo,
    of_module,
    play,
    play_with_a_call,
    until_ended,
    until_written,
    written,
    written_before_handover,
)

pytestmark = needs_chromium
Visit = Callable[[Trial], Browser]
CODE = MARKDOWN.partition("```python\n")[2].partition("\n```")[0]


@pytest.fixture
def slow_studio(own_broker: EmbeddedBroker) -> Iterator[Trial]:
    with running_studio(own_broker, min_step_s=0.06) as studio:
        yield studio


#: How a text looks that has grown by so many characters at a time.
GROWN = """(() => {
  const element = document.createElement("div"), shown = new it.Markdown(element);
  for (let length = 0; length < given[0].length; length += given[1]) {
    shown.update(given[0].slice(0, length));
  }
  shown.update(given[0]);
  return element.innerHTML;
})()"""


def texts(page: Browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(page.script(script, selector))


def copied(page: Browser) -> str:
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions})
    read = (
        "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))"
    )
    return str(page.driver.execute_async_script(read))


def test_markdown_is_shown_and_markup_stays_text(
    studio: Trial, visit: Visit, tmp_path: Path
) -> None:
    # given, when
    page = visit(studio)
    play(page, tmp_path, {"say": MARKDOWN})
    until_ended(page)
    # then
    assert texts(page, ".text h2") == ["Sorting a table"]  # below the title of the conversation
    assert texts(page, ".text strong, .text em, .text p code") == ["quick", "sorted", "key"]
    assert texts(page, ".text th") == ["city", "people"]
    assert texts(page, ".text td") == ["Bern", "134,506", "Graz", "302,749"]
    assert texts(page, ".text ol > li > ul > li") == ["with its header"]
    assert texts(page, ".text blockquote") == ["Nothing is lost."]
    (link, picture) = page.all(".text a")
    assert link.get_attribute("href") == "https://docs.example/sort"
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    # and: neither markup nor a picture of another server
    assert picture.get_attribute("href") == "https://pictures.example/a.png"
    assert page.all(".text b, .text img") == []
    last = '<b onclick="alert(1)">Markup</b> & a picture (image) stay text.'
    assert texts(page, ".text > p")[-1] == last


def test_a_text_that_has_grown_looks_as_if_it_had_come_at_once(
    studio: Trial, visit: Visit, tmp_path: Path
) -> None:
    # given: the language of its code is known
    page = visit(studio)
    play(page, tmp_path, {"say": MARKDOWN})
    page.wait(lambda: page.all("figure.code .code-keyword"))
    text = f"A [late] link.\n\n{MARKDOWN}\n# A\n\n### B\n\n[late]: https://late.example\n"
    # when
    at_once = of_module(page, "markdown", GROWN, text, len(text))
    # then
    assert "https://late.example" in at_once
    assert re.findall(r"<h(\d)", at_once) == ["2", "2", "3"]
    assert of_module(page, "markdown", GROWN, text, 1) == at_once


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "data:text/html,x", "/v1/models", "file:///etc/passwd"]
)
def test_a_link_leads_to_a_web_page_or_nowhere(
    studio: Trial, visit: Visit, tmp_path: Path, link: str
) -> None:
    page = visit(studio)
    play(page, tmp_path, {"say": f"[press me]({link}) and <{link}>"})
    until_ended(page)

    assert "press me" in written(page)
    assert page.all(".text a") == []


def test_code_is_highlighted_and_copied(studio: Trial, visit: Visit, tmp_path: Path) -> None:
    page = visit(studio)
    play(page, tmp_path, {"say": MARKDOWN})
    until_ended(page)
    # then
    page.wait(lambda: {"def", "return"} <= set(texts(page, "figure.code .code-keyword")))
    assert texts(page, "figure.code pre") == [CODE]
    # and
    page.one("figure.code button").click()
    page.wait(lambda: page.text("figure.code button") == "Copied")
    assert copied(page) == CODE
    page.one("[aria-label='Copy the answer']").click()
    page.wait(lambda: copied(page) == MARKDOWN)


def test_a_thought_is_folded_and_a_call_is_shown_and_answered(
    studio: Trial, visit: Visit, tmp_path: Path
) -> None:
    # given
    page = visit(studio)
    # when
    play_with_a_call(page, tmp_path)
    # then
    first, second = page.all(".answer")
    assert texts(page, ".thought-text") == ["Which city?", "It rains."]
    assert not any(one.is_displayed() for one in page.all(".thought-text"))
    first.find_element("css selector", ".thought summary").click()
    assert first.find_element("css selector", ".thought-text").is_displayed()
    assert texts(page, ".answer .call-title") == ["Calls weather"]
    assert json.loads(texts(page, ".answer .call pre")[0]) == {"city": "Graz"}
    assert texts(page, "article.results pre") == ["rain"]
    assert "Sorting a table" in second.text
    # and: the same after a reload
    shown = page.text("#turns")
    page.driver.refresh()
    page.wait(lambda: len(page.all(".answer")) == 2)
    page.wait(lambda: page.text("#turns") == shown)


def test_an_answer_says_how_fast_it_was(studio: Trial, visit: Visit, tmp_path: Path) -> None:
    page = visit(studio)
    play(page, tmp_path, {"think": "Hm. " * 20, "say": "Yes. " * 20})
    until_ended(page)

    facts = r"complete · \d+ tokens · [\d,.]+ tokens/s · first after \d+\.\d\d s · scripted"
    page.wait(lambda: re.fullmatch(facts, page.text(".answer .facts")))


def test_a_takeover_shows_where_it_was_in_the_markdown(
    slow_studio: Trial, visit: Visit, tmp_path: Path
) -> None:
    # given: behind a thought, which counts for nothing
    page = visit(slow_studio)
    said = "\n\n".join(f"Paragraph {number} has *some* words." for number in range(20))
    play(page, tmp_path, {"think": "Of some length.", "say": said})
    until_written(page, 60)
    page.wait(lambda: "1 of" in page.text("#workers"))
    # when
    page.one("#kill").click()
    # then: a token of the script has four characters, of the thought, too
    mark = re.search(r"token (\d+)", page.one(".handover").text)
    until_ended(page)
    assert mark is not None
    whole = f"<think>\nOf some length.\n</think>\n\n{said}"
    source = whole[: 4 * int(mark[1])].partition("</think>")[2]
    assert written_before_handover(page) == re.sub(r"[*\n]", "", source)
    assert written(page) == re.sub(r"[*\n]", "", said)


def test_the_text_of_a_file_goes_with_the_question(
    studio: Trial, visit: Visit, tmp_path: Path
) -> None:
    # given
    page = visit(studio)
    (tmp_path / "note.txt").write_text("Grüße\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "large.txt").write_text("x" * (1024 * 1024 + 1))
    # when: what is none is refused
    for name, reason in (("picture.png", "no text in UTF-8"), ("large.txt", "1,025 KiB")):
        page.one("#file").send_keys(str(tmp_path / name))
        page.wait(lambda reason=reason: reason in page.text("#notice"))
    assert page.all("#files li") == []
    # and: one is taken back
    for _ in range(2):
        page.one("#file").send_keys(str(tmp_path / "note.txt"))
        page.wait(lambda: page.all("#files li"))
        page.one("#files button").click()
        assert page.all("#files li") == []
    page.one("#file").send_keys(str(tmp_path / "note.txt"))
    page.wait(lambda: page.all("#files li"))
    ask(page, "What is it?", tokens=90)
    until_ended(page)
    # then
    assert written(page) == echo("note.txt:\n\n```\nGrüße\n\n```\n\nWhat is it?", 90)
    assert page.text(".question .said") == "What is it?"
    assert page.text(".file summary") == "note.txt"
    assert page.text(".file pre") == "Grüße\n"
