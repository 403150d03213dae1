"""What the demo asks for: short and long, text and chat, greedy and sampled."""

from rose_producer import Request


def _ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


_SAMPLED = {"temperature": 0.8, "top_p": 0.95}

REQUESTS: tuple[Request, ...] = (
    Request("Once upon a time", sampling={"max_new_tokens": 160}),
    Request("One morning, a little fox named Finn", sampling={"max_new_tokens": 200}),
    Request("There was a small", sampling={"max_new_tokens": 120, **_SAMPLED, "seed": 1}),
    Request("Dear friend,", sampling={"max_new_tokens": 140}),
    Request(_ask("Tell me a story about a cat."), sampling={"max_new_tokens": 180}),
    Request("The weather today", sampling={"max_new_tokens": 60}),
    Request("Once upon a time", sampling={"max_new_tokens": 220, **_SAMPLED, "seed": 2}),
    Request("In the garden,", sampling={"max_new_tokens": 150}),
    Request(
        "Once upon a time, there was a brave little mouse who lived in a hole. One day, the mouse",
        sampling={"max_new_tokens": 200},
    ),
    Request(
        _ask("Tell me a story about a bear."),
        sampling={"max_new_tokens": 180, **_SAMPLED, "seed": 3},
    ),
    Request("A dog", sampling={"max_new_tokens": 100}),
    Request("One morning", sampling={"max_new_tokens": 190, **_SAMPLED, "seed": 4}),
    Request(
        "Once upon a time, there was an old owl named Otto. One night,",
        sampling={"max_new_tokens": 170},
    ),
    Request("Dear friend,", sampling={"max_new_tokens": 130, **_SAMPLED, "seed": 5}),
)


def title(request: Request) -> str:
    """The prompt as a person would name it."""
    if isinstance(request.prompt, str):
        return request.prompt
    return " ".join(str(part["content"]) for part in request.prompt if isinstance(part, dict))
