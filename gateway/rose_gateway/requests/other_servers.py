"""Parameters that programs know from other servers, which have other names or no counterpart here.

Values that ask for what happens here anyway are accepted. For others the refusal says what to send.
"""

from rose_gateway.requests.parsing import Unsupported

_USE_MAX_TOKENS = "use max_tokens, or max_output_tokens of a response"
_USE_REPETITION_PENALTY = "use repetition_penalty, which counts all tokens of prompt and output"
_USE_STRUCTURED_OUTPUTS = 'use structured_outputs: {"json": ...}'
_NO_SUCH_SAMPLING = "this kind of sampling is not supported: use top_p, top_k or min_p"

#: vLLM's, llama.cpp's, Ollama's, LM Studio's and SGLang's. Null asks for nothing anywhere.
OF_OTHER_SERVERS: Unsupported = {
    "cache_prompt": ((True,), "prefixes are cached automatically while there is room"),
    "chat_template": ((), "the model's own chat template is used"),
    "dry_multiplier": ((0,), "use no_repeat_ngram_size or repetition_penalty"),
    "dynatemp_range": ((0,), "use temperature"),
    "ebnf": ((), "use grammar, in Lark's notation"),
    "guided_decoding_backend": (("auto", "guidance"), "grammars are compiled by llguidance"),
    "guided_whitespace_pattern": ((), "the grammar says where white space may be"),
    "include_reasoning": ((True,), "thoughts are always returned, apart from the text"),
    "include_stop_str_in_output": ((False,), "a stop string is always cut from the text"),
    "json_schema": ((), _USE_STRUCTURED_OUTPUTS),
    "keep_alive": ((), "the workers keep their model as long as they run"),
    "length_penalty": ((1,), "there is no beam search here"),
    "lora_path": ((), "adapters are models of their own: use the model NAME:ADAPTER"),
    "mirostat": ((0,), _NO_SUCH_SAMPLING),
    "n_predict": ((-1,), _USE_MAX_TOKENS),
    "num_ctx": ((), "the workers set the context length: see GET /v1/models"),
    "num_predict": ((-1,), _USE_MAX_TOKENS),
    "options": (({},), "send Ollama's options as parameters, beside model"),
    "penalty_last_n": ((), _USE_REPETITION_PENALTY),
    "priority": ((0,), "use service_tier"),
    "repeat_last_n": ((), _USE_REPETITION_PENALTY),
    "repeat_penalty": ((1,), _USE_REPETITION_PENALTY),
    "separate_reasoning": ((True,), "thoughts are always apart from the text"),
    "skip_special_tokens": ((True,), "special tokens are never part of the text"),
    "spaces_between_special_tokens": ((True,), "special tokens are never part of the text"),
    "tfs_z": ((1,), _NO_SUCH_SAMPLING),
    "top_a": ((0,), _NO_SUCH_SAMPLING),
    "truncate_prompt_tokens": ((), "what does not fit into the context is refused"),
    "typical_p": ((1,), _NO_SUCH_SAMPLING),
    "use_beam_search": ((False,), "there is no beam search here"),
    "xtc_probability": ((0,), _NO_SUCH_SAMPLING),
}
