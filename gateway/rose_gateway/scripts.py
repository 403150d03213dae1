"""The gateway's own Lua scripts, which lie beside the modules that run them."""

from functools import cache
from importlib.resources import files

from rose.protocol.scripts import Script, sha1_of, with_common


@cache
def own_script(package: str, name: str) -> Script:
    """NAME.lua of the package, behind what it uses of the protocol's `common.lua`. It publishes
    nothing, so it is the same everywhere."""
    source = with_common((files(package) / f"{name}.lua").read_text())
    return Script(name, source, sha1_of(source), publishes=False)
