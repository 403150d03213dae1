"""What a person does on the page, and reads there.

The null engine echoes: each character that must be there is known, and its place.
"""

from pathlib import Path
from typing import Any

from selenium.webdriver.common.keys import Keys

from tests.support.browser import Browser
from tests.support.echo import echoed_text
from tests.support.scripted import MODEL, Step, script

SAYING = "the quick brown fox jumps over the lazy dog, "

#: What Markdown can say, and where markup stays text.
MARKDOWN = """## Sorting a table

A **quick** sort with `sorted` and a *key*; see [the docs](https://docs.example/sort).

| city | people |
|:-----|-------:|
| Bern | 134,506 |
| Graz | 302,749 |

```python
def by_people(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: -row["people"])
```

1. Read the table
   - with its header
2. Sort it

> Nothing is lost.

<b onclick="alert(1)">Markup</b> &amp; ![a picture](https://pictures.example/a.png) stay text.
"""
TOOLS = '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}]'
#: Thinks and calls first; answers in Markdown when the call has a result.
STEPS: list[Step] = [
    {"think": "Which city?", "say": "I ask.", "call": "weather", "arguments": {"city": "Graz"}},
    {"think": "It rains.", "say": MARKDOWN},
]


def echo(text: str, tokens: int) -> str:
    """What the null engine answers, as the page shows it: without space at its end."""
    return echoed_text(text, tokens).strip()


def ask(page: Browser, text: str = SAYING, tokens: int = 150) -> None:
    """It has been taken when this returns."""
    set_value(page, "#length", str(tokens))
    before = page.driver.current_url
    page.one("#input").send_keys(text + Keys.ENTER)
    page.wait(lambda: "/#" in page.driver.current_url and page.driver.current_url != before)


def choose(page: Browser, selector: str, value: str) -> None:
    """In a select, as a person does."""
    page.wait(lambda: page.all(f"{selector} option[value='{value}']"))
    set_value(page, selector, value)


def set_value(page: Browser, selector: str, value: str) -> None:
    """Of a field, at once."""
    page.script(
        "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
        "one.dispatchEvent(new Event('change', { bubbles: true }))",
        selector,
        value,
    )


def play(page: Browser, folder: Path, *steps: Step, text: str = "Go on.") -> None:
    """The scripted model plays: its script is an attached file."""
    (folder / "script.txt").write_text(script(*steps))
    choose(page, "#model", MODEL)
    page.one("#file").send_keys(str(folder / "script.txt"))
    page.wait(lambda: page.all("#files li"))
    page.one("#input").send_keys(text + Keys.ENTER)
    page.wait(lambda: "/#" in page.driver.current_url)


def play_with_a_call(page: Browser, folder: Path) -> None:
    """`STEPS`, up to the end of the last answer."""
    set_value(page, "#tools", TOOLS)
    play(page, folder, *STEPS, text="Which is the largest city?")
    page.one("form.results textarea").send_keys("rain")
    page.one("form.results button").click()
    page.wait(lambda: len(page.all(".answer")) == 2)
    until_ended(page)
    page.wait(lambda: page.all("figure.code .code-keyword"))


def written(page: Browser) -> str:
    """The last answer's text without the notes in it."""
    return str(
        page.script(
            "const text = [...document.querySelectorAll('.answer .text')].at(-1)?.cloneNode(true);"
            "text?.querySelectorAll('.handover').forEach((one) => one.remove());"
            "return (text?.textContent ?? '').trim()"
        )
    )


def written_before_handover(page: Browser) -> str:
    return str(
        page.script(
            "const mark = document.querySelector('.handover'), range = new Range();"
            "range.setStart(mark.closest('.text'), 0); range.setEndBefore(mark);"
            "return range.toString()"
        )
    )


def version(page: Browser, selector: str) -> str:
    """Which of its siblings the last message is, such as 1/2; "" where it has none."""
    return page.text(f"{selector} .branches").strip("\u2039\u203a ")


def job_of(page: Browser) -> str:
    return page.driver.current_url.partition("#")[2]


def titles(page: Browser) -> list[str]:
    """Of the listed conversations, the latest first."""
    script = (
        "return [...document.querySelectorAll('#conversations .title')].map((e) => e.textContent)"
    )
    return list(page.script(script))


def until_written(page: Browser, characters: int) -> None:
    page.wait(lambda: len(written(page)) >= characters)


def until_ended(page: Browser, word: str = "complete") -> None:
    page.wait(lambda: page.text(".answer .facts").startswith(word))


def is_complete(page: Browser) -> bool:
    """This browser may be slower than the model."""
    return page.text(".answer .facts").startswith("complete")


def of_module(page: Browser, module: str, call: str, *given: Any) -> Any:
    """What a call of one of the page's own functions comes to."""
    return page.driver.execute_async_script(
        f"const [...given] = arguments, done = given.pop();"
        f"import(`${{location.origin}}/page/{module}.js`).then(async (it) => done(await {call}))",
        *given,
    )
