"""The built-in model with a chat template of a stranger's, which some messages make greedy."""

import json
import shutil
from pathlib import Path
from typing import Any

import roseinfer

#: What a message says to make the template never end, or take gigabytes.
HANGS, GROWS = "hang", "grow"

TEMPLATE = """\
{%- for message in messages -%}
  {%- if message.content == 'hang' -%}
    {%- for a in range(99999) -%}{%- for b in range(99999) -%}{%- endfor -%}{%- endfor -%}
  {%- elif message.content == 'grow' -%}
    {{- 'a' * 9000000000 -}}
  {%- else -%}
    {{- message.content -}}
  {%- endif -%}
{%- endfor -%}
"""


def write_model(folder: Path, template: str = TEMPLATE) -> Path:
    """The folder, for `--model`."""
    own = Path(next(iter(roseinfer.__path__)), "demo_model")
    shutil.copytree(own, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "chat_template.jinja").write_text(template)
    config = folder / "tokenizer_config.json"
    values: dict[str, Any] = json.loads(config.read_text())
    values.pop("chat_template", None)
    config.write_text(json.dumps(values))
    return folder
