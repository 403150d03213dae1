"""Guesses of what comes next, from what came before."""

import random

from roseinfer.sessions.prompt_lookup import PromptLookup

SENTENCE = list(range(10, 30))


def test_what_followed_the_last_tokens_before_is_guessed() -> None:
    # given a text, and its beginning once more
    tokens = [*SENTENCE, 1, *SENTENCE[:3]]
    # when it is followed
    lookup = PromptLookup()
    # then the rest of the text is the guess, as far as it is asked for
    assert lookup.update(tokens)
    assert lookup.draft(tokens, 4) == tuple(SENTENCE[3:7])
    assert lookup.draft(tokens, 0) == ()


def test_a_text_that_repeats_nothing_has_no_guess() -> None:
    lookup, tokens = PromptLookup(), [1]
    for token in range(2, 50):
        assert not lookup.update(tokens)
        assert lookup.draft(tokens, 5) == ()
        assert lookup.acceptance(5, least=0) == []
        tokens.append(token)


def test_a_short_repetition_goes_on_into_itself() -> None:
    lookup, tokens = PromptLookup(), [5, 1, 2, 3, 1, 2, 3, 1]
    assert lookup.update(tokens)
    assert lookup.draft(tokens, 8) == (2, 3, 1, 2, 3, 1, 2, 3)


def test_the_latest_place_counts() -> None:
    lookup, tokens = PromptLookup(), [1, 2, 7, 1, 2, 8, 1, 2]
    assert lookup.update(tokens)
    assert lookup.draft(tokens, 1) == (8,)


def test_tokens_that_come_one_by_one_or_together_give_the_same_guesses() -> None:
    # given a text of few words, so that many of its passages come again
    source = random.Random(4)
    tokens = [source.randrange(4) for _ in range(300)]
    prompt = 20
    one_by_one, together = PromptLookup(), PromptLookup()
    together.update(tokens[:prompt])
    # when one lookup sees each token, and the other several at a time
    for end in range(prompt, len(tokens) + 1):
        one_by_one.update(tokens[:end])
        if end % 7 == 0 or end == len(tokens):
            together.update(tokens[:end])
    # then they agree in guesses and chances
    assert one_by_one.draft(tokens, 9) == together.draft(tokens, 9)
    assert one_by_one.acceptance(9, least=0) == together.acceptance(9, least=0)


def test_guesses_that_were_right_make_the_next_ones_likelier_and_wrong_ones_less() -> None:
    # given a text, and its beginning once more
    def after(following: list[int]) -> list[float]:
        lookup, tokens = PromptLookup(), [*SENTENCE, 1, *SENTENCE[:3]]
        lookup.update(tokens)
        for token in following:
            tokens.append(token)
            lookup.update(tokens)
        # what its answers have made of two passages that have just met
        tokens += SENTENCE[:2]
        lookup.update(tokens)
        return lookup.acceptance(3, least=0)

    # when it goes on as before, or each time in another way
    copied = after([*SENTENCE[3:], 1, *SENTENCE, 1])
    strayed = after([token for n in range(8) for token in (*SENTENCE[:2], 100 + n)])
    # then the chances tell one from the other, and further guesses are never likelier
    assert copied[0] > 2 * strayed[0]
    assert copied == sorted(copied, reverse=True)


def test_chances_end_where_they_are_too_small() -> None:
    lookup, tokens = PromptLookup(), [*SENTENCE, 1, *SENTENCE[:2]]
    assert lookup.update(tokens)
    every = lookup.acceptance(12, least=0)
    assert len(every) == 12
    assert lookup.acceptance(12, least=every[4]) == every[:5]
