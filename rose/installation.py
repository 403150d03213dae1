"""How to add an optional part to this installation, wherever it came from."""

import json
from importlib.metadata import distributions
from urllib.parse import unquote, urlsplit


def how_to_install(extra: str) -> str:
    """A command of pip that adds the extra: from the folder, file or repository of which roseinfer
    was installed, or, if that is unknown, from the index."""
    for distribution in distributions(name="roseinfer"):
        if text := distribution.read_text("direct_url.json"):
            return _from_source(json.loads(text), extra)
    return f"pip install 'roseinfer[{extra}]'"


def _from_source(source: dict[str, dict[str, object]], extra: str) -> str:
    url = str(source["url"])
    if "dir_info" in source:
        editable = "-e " if source["dir_info"].get("editable") else ""
        return f"pip install {editable}'{unquote(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in source:
        url = f"{source['vcs_info']['vcs']}+{url}@{source['vcs_info']['commit_id']}"
    return f"pip install 'roseinfer[{extra}] @ {url}'"
