"""What a person does on the page, and reads there.

The null engine echoes: each character that must be there is known, and its place.
"""

from selenium.webdriver.common.keys import Keys

from tests.support.browser import Browser

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
