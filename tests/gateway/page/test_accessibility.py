"""The page by keyboard, by ear, in a narrow window, in the dark."""

from collections.abc import Callable
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.gateway.page.conftest import Trial
from tests.support.axe import violations
from tests.support.browser import Browser, needs_chromium
from tests.support.page import SAYING, ask, echo, play_with_a_call, set_value, until_ended, written

pytestmark = needs_chromium
Visit = Callable[[Trial], Browser]


#: What is read out by itself, when it changes.
LIVE = "[aria-live]:not([aria-live=off]), [role=status], [role=alert], [role=log], output"


def test_all_of_it_can_be_done_with_the_keyboard(trial: Trial, visit: Visit) -> None:
    # given
    page = visit(trial)

    def press(*keys: str) -> str:
        ActionChains(page.driver).send_keys(*keys).perform()
        here = (
            "const e = document.activeElement;"
            "if (e === document.body) return 'BODY';"
            "return e.id || (e.closest('#conversations') ? 'conversation' : '')"
            "  || e.getAttribute('aria-label') || e.textContent.trim()"
        )
        return str(page.script(here))

    def focus(selector: str) -> None:
        page.script("document.querySelector(arguments[0]).focus()", selector)

    # when: it begins where one types
    assert page.script("return document.activeElement.id") == "input"
    set_value(page, "#length", "16")
    press(SAYING, Keys.ENTER)
    until_ended(page)
    # then: everything has its turn, with a name and a visible focus
    order = []
    focus("#skip")
    ring = "return getComputedStyle(document.activeElement).outlineStyle"
    while (here := press(Keys.TAB)) not in (*order, "BODY", "skip"):
        order.append(here)
        assert page.script(ring) != "none", here
    wanted = ["new", "new-text", "search", "conversation", "kill", "key", "import", "theme"]
    wanted += ["open-settings", "open-menu", "turns", "Copy the message", "Edit the message"]
    wanted += ["Copy the answer", "Regenerate", "input", "model", "attach", "send"]
    places = [order.index(one) for one in wanted]
    assert places == sorted(places), order
    # and: another question in its place, and the first one again
    focus("[aria-label='Edit the message']")
    assert press(Keys.ENTER) == "The message"
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
    press("x", Keys.ENTER)
    page.wait(lambda: page.text(".question .said") == "x")
    until_ended(page)
    focus("[aria-label='The version before']")
    press(Keys.ENTER)
    page.wait(lambda: page.text(".question .said") == SAYING)
    # and: settings open and close, and so does the menu
    focus("#open-settings")
    press(Keys.ENTER)
    assert page.one("#settings").is_displayed()
    assert press(Keys.ESCAPE) == "open-settings"
    focus("#open-menu")
    press(Keys.ENTER)
    assert press(Keys.TAB) == "rename"
    press(Keys.ENTER)
    assert press("Foxes") == "name"
    press(Keys.ENTER)
    page.wait(lambda: page.text("#title") == "Foxes")
    # and: a new conversation, and back to a line of the list
    focus("#new")
    assert press(Keys.ENTER) == "input"
    assert page.all(".answer") == []
    page.wait(lambda: page.all("#conversations a"))
    focus("#conversations a")
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


def test_nobody_is_read_a_counter(trial: Trial, visit: Visit) -> None:
    # given: whoever hears the page is told of each change in these
    page = visit(trial)
    page.script(
        "window.heard = []; new MutationObserver((changes) => {"
        "  for (const { target } of changes) {"
        "    const live = (target.closest ? target : target.parentElement)?.closest(arguments[0]);"
        "    if (live) window.heard.push(live.textContent);"
        "  }"
        "}).observe(document, { subtree: true, childList: true, characterData: true })".replace(
            "arguments[0]", repr(LIVE)
        )
    )
    # when
    ask(page, tokens=150)
    page.wait(lambda: "1 of" in page.text("#workers"))
    until_ended(page)
    # then
    heard = [one for one in page.script("return window.heard") if one]
    assert heard == ["The answer is complete up to the limit of tokens."]


def test_axe_finds_nothing(studio: Trial, visit: Visit, tmp_path: Path) -> None:
    # given: all that a conversation can show
    page = visit(studio)
    page.resize(1280, 800)
    play_with_a_call(page, tmp_path)
    page.script("for (const one of document.querySelectorAll('#turns details')) one.open = true")
    # when, then
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        assert violations(page) == [], scheme
        for button, dialog in DIALOGS.items():
            if button in ("#rename", "#delete"):
                page.one("#open-menu").click()
                assert violations(page) == [], (scheme, "menu")
            page.one(button).click()
            page.wait(lambda dialog=dialog: page.one(dialog).is_displayed())
            assert violations(page) == [], (scheme, dialog)
            page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
            page.wait(lambda dialog=dialog: not page.one(dialog).is_displayed())
    page.resize(360, 640)
    assert violations(page) == []
    page.one("#show-sidebar").click()
    assert violations(page) == []


#: By what opens them.
DIALOGS = {
    "#open-settings": "#settings",
    "#key": "#key-dialog",
    "#rename": "#rename-dialog",
    "#delete": "#delete-dialog",
}


@pytest.mark.parametrize(("width", "height"), [(320, 568), (360, 640), (860, 600)])
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
    for selector in ("#input", "#send", "#show-sidebar", "#open-settings", "#open-menu"):
        box = page.one(selector).rect
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= width, selector
        assert box["y"] + box["height"] <= height, selector
    # and: the chat has the room
    room = page.script("return document.getElementById('turns').clientHeight")
    assert room >= 0.6 * height
    # and: the list is a button away
    assert not page.one("#sidebar").is_displayed()
    page.one("#show-sidebar").click()
    assert page.one("#show-sidebar").get_attribute("aria-expanded") == "true"
    for selector in ("#rate", "#workers", "#key", "#theme"):
        box = page.one(selector).rect
        assert box["x"] + box["width"] <= width, selector
        assert box["y"] + box["height"] <= height, selector
    page.one("#conversations a").click()
    page.wait(lambda: not page.one("#sidebar").is_displayed())
