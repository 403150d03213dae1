"""The page by keyboard, by ear, in a narrow window, in the dark."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.gateway.page.conftest import Trial
from tests.support.browser import Browser, needs_chromium
from tests.support.echo import echoed_text as echo
from tests.support.page import SAYING, ask, until_ended, written

pytestmark = needs_chromium
Visit = Callable[[Trial], Browser]


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
