"""A small random model that can be asked anything a chat model can: it has a chat template that
shows tools, and with a grammar it says what it must.

What it says without one is noise. Its tokens are bytes.
"""

from pathlib import Path

from tests.roseinfer.models import byte_tokenizer, tiny_llama

#: Tokens of the context: the definitions of tools are long where each byte is a token.
CONTEXT = 4096

#: Calls are written as in the Hermes family of models.
_TEMPLATE = """\
{%- if tools %}
    {{- '<|system|>\\nYou may call one or more functions. They are described as JSON within' }}
    {{- ' <tools></tools>:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\nTo call one, write:\\n<tool_call>\\n' }}
    {{- '{"name": <its name>, "arguments": <an object>}\\n</tool_call><|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|user|>\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response><|end|>\\n' }}
    {%- elif message.role in ('system', 'user', 'assistant') %}
        {{- '<|' ~ message.role ~ '|>\\n' ~ (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- else %}
        {{- raise_exception('Unknown role: ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}
"""


#: It is told how to think, shows its thoughts again, and begins an answer within one.
THINKS = """\
{%- if reasoning_effort is defined %}
    {{- '<|system|>\\neffort: ' ~ reasoning_effort ~ '<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|' ~ message.role ~ '|>\\n' }}
    {%- if message.reasoning_content %}
        {{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content ~ '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n<think>\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def write_chat_model(folder: Path, template: str = _TEMPLATE) -> Path:
    """The folder, for `--model`."""
    tiny_llama(max_position_embeddings=CONTEXT).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
