"""Streams of text: no half characters, no stop strings, the same text wherever one resumes."""

import itertools
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from roseinfer.text.detokenizer import Detokenizer, StopStrings, TextStream
from tests.roseinfer.models import byte_tokenizer

TEXT = "thé quick 🦊 über the lazy 犬, a\u0301!"


def metaspace_tokenizer() -> Tokenizer:
    """Like a sentencepiece model: words begin with ▁, other characters fall back to bytes."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz,.!", "▁t", "th", "▁th", "he", "▁a"]
    merges = [("▁", "t"), ("t", "h"), ("▁t", "h"), ("h", "e"), ("▁", "a")]
    model = BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=merges,
        byte_fallback=True,
        unk_token=None,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


TOKENIZERS = {
    "bytes": byte_tokenizer().backend_tokenizer,
    "metaspace": metaspace_tokenizer(),
}


@pytest.fixture(params=sorted(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("split", [1, 2, 5, 9])
def test_deltas_are_decoding_all_minus_decoding_the_prompt(tokenizer: Any, split: int) -> None:
    ids = ids_of(tokenizer, "the lazy fox ran home and the cat too")
    stream = Detokenizer(tokenizer).stream(ids[:split])
    text = "".join(stream.push(i) for i in ids[split:]) + stream.finish()
    assert tokenizer.decode(ids[:split]) + text == tokenizer.decode(ids)


def test_a_long_prompt_primes_like_a_short_one(tokenizer: Any) -> None:
    prompt = ids_of(tokenizer, "the cat and the fox " * 20 + "ran")
    more = ids_of(tokenizer, "x home")[1:]
    stream = Detokenizer(tokenizer).stream(prompt)
    text = "".join(stream.push(i) for i in more)
    assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + more)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 300), max_size=40), split=st.integers(0, 40))
def test_tokens_read_one_by_one_give_the_deltas_of_all_read_together(
    ids: list[int], split: int
) -> None:
    tokenizer = TOKENIZERS["bytes"]
    context, generated = ids[:split], ids[split:]
    one_by_one = Detokenizer(tokenizer).stream(context)
    together = TextStream(tokenizer, context)

    assert [one_by_one.push(i) for i in generated] == [together.push(i) for i in generated]
    assert one_by_one.finish() == together.finish()


def test_no_half_character_is_shown(tokenizer: Any) -> None:
    stream = Detokenizer(tokenizer).stream(ids_of(tokenizer, "so"))
    deltas = [stream.push(i) for i in ids_of(tokenizer, TEXT)]
    assert "".join(deltas).strip() == TEXT
    assert not any("\ufffd" in delta for delta in deltas)
    assert "🦊" in deltas


def test_an_incomplete_tail_is_dropped(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "so 🦊")
    stream = Detokenizer(tokenizer).stream(ids_of(tokenizer, "a"))
    text = "".join(stream.push(i) for i in ids[:-1]) + stream.finish()
    assert text.strip() == "so"


def tokenizer_of_half_characters() -> Tokenizer:
    """A byte-level one with a piece that ends in the first byte of a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*alphabet, "!ð", "d!ð", "END!ð"])}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[("!", "ð"), ("d", "!ð")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_whole_characters_before_half_a_one_are_kept() -> None:
    # given
    tokenizer = tokenizer_of_half_characters()
    ids = ids_of(tokenizer, "end!🦊 end!🦊")[:-3]
    assert tokenizer.id_to_token(ids[-1]) == "d!ð"
    # when
    stream = Detokenizer(tokenizer).stream(ids_of(tokenizer, "so "))
    pushed = "".join(stream.push(i) for i in ids)
    # then
    assert pushed == "end!🦊 en"
    assert stream.finish() == "d!"


def test_a_stop_string_before_half_a_character_counts() -> None:
    # given
    tokenizer = tokenizer_of_half_characters()
    ids = [*ids_of(tokenizer, "the "), tokenizer.token_to_id("END!ð")]
    # when
    stream = Detokenizer(tokenizer).stream([], ["END"])
    text = "".join(stream.push(i) for i in ids) + stream.finish()
    # then
    assert (text, stream.stop) == ("the ", "END")
    # but not in tokens that may not stop
    stream = Detokenizer(tokenizer).stream([], ["END"])
    text = "".join(stream.push(i, may_stop=False) for i in ids) + stream.finish()
    assert (text, stream.stop) == ("the END!", None)


@settings(max_examples=300, derandomize=True)
@given(ids=st.lists(st.integers(0, 285), max_size=40))
def test_the_text_is_all_of_the_tokens_but_half_a_character(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["bytes"]
    stream = Detokenizer(tokenizer).stream([])
    text = "".join(stream.push(i) for i in ids) + stream.finish()
    assert text == tokenizer.decode(ids).rstrip("\ufffd")


def test_half_a_character_after_a_byte_is_shown_as_such() -> None:
    """The decoder reads a run of bytes as one: what was a line break is none with half a fox."""
    tokenizer = TOKENIZERS["metaspace"]
    broken = [*map(tokenizer.token_to_id, ["a", "<0x0A>", "<0xF0>", "<0x9F>", "th", "he"])]
    stream = Detokenizer(tokenizer).stream(ids_of(tokenizer, "so"))
    assert [stream.push(i) for i in broken] == ["a", "\n", "", "", "\ufffd\ufffdth", "he"]


def test_a_prompt_whose_end_is_half_a_character() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    prompt = [*map(tokenizer.token_to_id, ["a", "<0x0A>", "<0xF0>", "th"])]
    stream = Detokenizer(tokenizer).stream(prompt)
    assert stream.push(tokenizer.token_to_id("he")) == "he"


def test_a_prompt_that_ends_in_many_bytes_does_not_spoil_what_follows(tokenizer: Any) -> None:
    # given: where it is cut off for priming would be inside of a character
    prompt, more = ids_of(tokenizer, "a" + "犬" * 30), ids_of(tokenizer, "犬🦊 the")
    more = more[1:] if tokenizer.id_to_token(more[0]) == "▁" else more
    stream = Detokenizer(tokenizer).stream(prompt)
    # when / then
    assert "".join(stream.push(i) for i in more) == "犬🦊 the"


@settings(max_examples=300, derandomize=True)
@given(ids=st.lists(st.integers(0, 285), max_size=40), split=st.integers(0, 40))
def test_no_tokens_are_too_odd(ids: list[int], split: int) -> None:
    for tokenizer in TOKENIZERS.values():
        stream = Detokenizer(tokenizer).stream(ids[:split])
        "".join(stream.push(i) for i in ids[split:]).encode()


def test_special_tokens_have_no_text() -> None:
    stream = Detokenizer(TOKENIZERS["bytes"]).stream([256])
    assert stream.push(256) + stream.push(257) == ""


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert Detokenizer(None).stream([1, 2]).push(3) == ""


def test_a_stop_string_may_lie_across_tokens() -> None:
    stops = StopStrings(["END", "fin."])
    assert [stops.push(d) for d in ("abc E", "N", "x E", "ND and more", "!")] == [
        "abc ",
        "",
        "ENx ",
        "",
        "",
    ]
    assert stops.found
    assert stops.finish() == ""


def test_the_first_of_several_stops_counts() -> None:
    stops = StopStrings(["world", "lo"])
    assert stops.push("hello world") == "hel"


texts = st.text("abE ND", max_size=30)


@settings(max_examples=200, derandomize=True)
@given(text=texts, cuts=st.sets(st.integers(0, 30)), stops=st.lists(texts.filter(bool), max_size=3))
def test_stops_do_not_depend_on_the_pieces(text: str, cuts: set[int], stops: list[str]) -> None:
    edges = sorted({0, *cuts, len(text)} - {c for c in cuts if c > len(text)})
    machine = StopStrings(stops)
    out = "".join(machine.push(text[a:b]) for a, b in itertools.pairwise(edges))
    out += machine.finish()
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        assert out == text
        return
    # A stop that is complete earlier wins over one that begins earlier but ends later.
    assert text.startswith(out)
    assert not any(stop in out for stop in stops)
    assert machine.found


@pytest.mark.parametrize("name", TOKENIZERS)
@given(ids=st.lists(st.integers(0, 300), max_size=12))
def test_shown_special_tokens_stand_in_the_text_that_is_there_without_them(
    name: str, ids: list[int]
) -> None:
    # given
    tokenizer = Tokenizer.from_str(TOKENIZERS[name].to_str())
    special = "<|special|>"
    tokenizer.add_special_tokens([special])
    special_id = tokenizer.token_to_id(special)
    ids = [i if i < tokenizer.get_vocab_size() else special_id for i in ids]
    runs = [list(run) for _, run in itertools.groupby(ids, lambda i: i == special_id)]
    assume(not any("\ufffd" in tokenizer.decode(run) for run in runs))
    # when
    hidden = Detokenizer(tokenizer).stream([])
    shown = Detokenizer(tokenizer).stream([], shown_special=[special, "<no such>"])
    texts = ["".join(map(stream.push, ids)) + stream.finish() for stream in (hidden, shown)]
    # then
    assert texts[1].count(special) == ids.count(special_id)
    assert texts[1].replace(special, "") == texts[0]


def test_the_text_begins_with_the_end_of_the_prompt_that_is_shown() -> None:
    # given
    tokenizer = TOKENIZERS["bytes"]
    prompt = ids_of(tokenizer, "so <think>\n")
    # when
    stream = Detokenizer(tokenizer).stream(prompt, shown_prompt_end=["<b>", "<think>"])
    other = Detokenizer(tokenizer).stream(prompt[:-2], shown_prompt_end=["<think>"])
    # then
    ids = ids_of(tokenizer, "ab")
    assert [stream.push(i) for i in ids] == ["<think>a", "b"]
    assert other.push(ids[0]) == "a"
