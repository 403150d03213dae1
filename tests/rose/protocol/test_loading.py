"""What a script is made of: its own file and what it uses of `common*.lua`."""

import re
from importlib.resources import files

import pytest

from rose.protocol.scripts import load

_FOLDER = files("rose.protocol.scripts")
NAMES = sorted(
    file.name.removesuffix(".lua")
    for file in _FOLDER.iterdir()
    if file.name.endswith(".lua") and not file.name.startswith("common")
)
COMMON = {
    name
    for file in _FOLDER.iterdir()
    if file.name.startswith("common")
    for name in re.findall(r"^local (?:function )?(\w+)", file.read_text(), re.MULTILINE)
}


def declared(source: str) -> list[str]:
    return re.findall(r"^local (?:function )?(\w+)", source, re.MULTILINE)


def declared_everywhere(name: str) -> list[str]:
    """What stands before the script's own first line."""
    own = (_FOLDER / f"{name}.lua").read_text()
    first = next(line for line in own.splitlines() if line and not line.startswith(("--", "#!")))
    source = load(name).source
    return declared(source[: source.index(f"\n{first}\n")])


def called(source: str) -> set[str]:
    """Functions of common*.lua that the code calls."""
    return set(re.findall(r"(?<![.\w])(\w+)\(", re.sub(r"--.*", "", source))) & COMMON


@pytest.mark.parametrize("name", NAMES)
def test_a_script_declares_what_it_calls(name: str) -> None:
    # when
    source = load(name).source
    # then: and nowhere again what it declares everywhere
    names = declared(source)
    assert called(source) <= set(names)
    assert all(names.count(common) == 1 for common in declared_everywhere(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_declares_nothing_of_the_others(name: str) -> None:
    # when
    source = load(name).source
    # then: what of common*.lua it declares occurs a second time
    code = re.sub(r"--.*", "", source)
    unused = [word for word in declared(source) if len(re.findall(rf"\b{word}\b", code)) == 1]
    assert unused == []


def test_what_only_tenants_need_is_declared_where_one_comes() -> None:
    # when
    source = load("submit").source
    # then
    opens, accounts = (
        source.index("if shares and not alone then"),
        source.index("local function tenant_accounts"),
    )
    assert opens < accounts


def test_flags_stay_in_the_first_line() -> None:
    assert load("append").source.startswith("#!lua flags=allow-oom\nlocal ")


def test_a_script_names_the_channels_of_its_database() -> None:
    # when
    script = load("append").sent_to(7, sharded=False)
    # then
    assert "local DATABASE = '7'" in script.source
    assert "local DATABASE = '0'" in load("append").source


def test_a_script_for_a_cluster_publishes_to_a_shard() -> None:
    # when
    script = load("append").sent_to(0, sharded=True)
    # then
    assert "local PUBLISH = 'SPUBLISH'" in script.source
    assert "local PUBLISH = 'PUBLISH'" not in script.source
    assert script.sha1 != load("append").sha1
