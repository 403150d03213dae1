"""How much is measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int = 3
    requests: int = 32
    max_tokens: int = 128
    """that one of them generates"""
    models: tuple[str, ...] = ("llama-135m",)
    dtypes: tuple[str, ...] = ()
    """none: the one that this processor is made for"""
    limit_s: float = 90
    """of a round of a peer that is very slow"""
    single_tokens: int = 65
    drafting_model: str = "qwen3.5-0.8b"
    long_model: str = "llama-135m-long"
    long_prompts: tuple[int, ...] = (128, 8_192, 32_768)
    long_tokens: int = 33
    sum_elements: int = 2**28
    """of float32: 1 GiB, many times any cache"""
    prefill_rows: tuple[int, ...] = (256, 2_048)
    text_tokens: int = 4_096
    """whose perplexity is taken"""
    waiting: tuple[int, ...] = (10, 100, 1_000, 10_000)
    waiting_tokens: int = 4_000
    first_context: int = 128
    context_steps: int = 16
    dictated_tokens: int = 160
    """the most that a request generates to show what speculation brings"""
    stories: int = 16
    story_tokens: int = 320
    """the most of one that a trained model writes"""
    decoding: int = 8
    """requests, while prompts arrive"""
    arrivals: int = 8
    arrival_tokens: int = 1_024
    first_tokens: int = 100
    """requests, one by one, whose time to the first token is taken in a round"""


FULL = Scale()
TINY = Scale(
    rounds=1,
    requests=2,
    max_tokens=8,
    models=("built-in",),
    dtypes=("float32",),
    limit_s=30,
    single_tokens=5,
    drafting_model="tiny",
    long_model="built-in",
    long_prompts=(16, 300),
    long_tokens=5,
    sum_elements=2**20,
    prefill_rows=(16,),
    text_tokens=64,
    waiting=(2, 20),
    waiting_tokens=64,
    first_context=512,
    context_steps=2,
    dictated_tokens=8,
    stories=4,
    story_tokens=8,
    decoding=2,
    arrivals=1,
    arrival_tokens=128,
    first_tokens=2,
)
