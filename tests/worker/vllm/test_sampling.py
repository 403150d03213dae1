"""Our sampling as one of vLLM's logits processors, without the rest of vLLM."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from rose.sampling import SamplingParams
from roseinfer.demo_model import MODEL_PATH
from roseinfer.sampling.sampler import sample_tokens
from roseinfer.sessions.session import InferenceSession
from tests.support.engines import FEATURES, set_variables

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

VOCAB = 2048
ROUNDS = 60
PROMPT = [40, 50, 60, 40]


class Batch:
    """Requests that come, move and go as in vLLM's batch, each with a session that knows better."""

    def __init__(self, seed: int) -> None:
        set_variables()
        from rose_worker.vllm.model import session_factory
        from rose_worker.vllm.sampling import Sampling

        model = SimpleNamespace(
            model=str(MODEL_PATH),
            tokenizer=str(MODEL_PATH),
            hf_config=AutoConfig.from_pretrained(MODEL_PATH),
            max_model_len=1024,
            get_vocab_size=lambda: VOCAB,
        )
        config = SimpleNamespace(model_config=model)
        self._factory = session_factory(config)
        self._sampling = Sampling(config, torch.device("cpu"), False)
        self._random = random.Random(seed)
        self._logits = torch.Generator().manual_seed(seed)
        self._rows: list[tuple[InferenceSession, list[int]]] = []
        self.compared = 0

    def _new(self) -> tuple[Any, tuple[InferenceSession, list[int]]]:
        """What vLLM says of a new request, half of which resume."""
        from rose_worker.vllm.sampling import extra_args

        feature = self._random.choice(FEATURES)
        params = SamplingParams(max_new_tokens=30, **feature).seeded(self._random.randrange(99))
        begun: list[int] = []
        if params.constraint is None and self._random.random() < 0.5:
            begun = [self._random.randrange(300, VOCAB) for _ in range(3)]
        session = self._factory.new_session(PROMPT, params=params, generated_ids=begun)
        given = SimpleNamespace(extra_args=extra_args(session.params, len(PROMPT)))
        return given, (session, [])

    def change(self) -> None:
        """Finished requests go, new ones take their places, the last ones fill the holes."""
        from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

        holes = [i for i, (session, _) in enumerate(self._rows) if session.finished]
        added, moved = [], []
        for _ in range(self._random.randrange(4)):
            index = holes.pop(0) if holes else len(self._rows)
            given, row = self._new()
            self._rows[index : index + 1] = [row]
            added.append((index, given, list(row[0].tokens), row[1]))
        removed = sorted(holes, reverse=True)
        while holes:
            last = len(self._rows) - 1
            if holes[-1] != last:
                self._rows[holes[0]] = self._rows[last]
                moved.append((last, holes.pop(0), MoveDirectionality.UNIDIRECTIONAL))
            else:
                holes.pop()
            self._rows.pop()
        if len(self._rows) > 1 and self._random.random() < 0.3:
            a, b = self._random.sample(range(len(self._rows)), 2)
            self._rows[a], self._rows[b] = self._rows[b], self._rows[a]
            moved.append((a, b, MoveDirectionality.SWAP))
        changed = added or moved or removed
        update = BatchUpdate(len(self._rows), removed, added, moved) if changed else None
        self._sampling.update_state(update)

    def step(self) -> None:
        if not self._rows:
            return
        logits = 3 * torch.randn(len(self._rows), VOCAB, generator=self._logits)
        wanted = sample_tokens(logits, [s.sampling_request() for s, _ in self._rows]).tolist()
        assert self._sampling.apply(logits.clone()).argmax(-1).tolist() == wanted
        for (session, output), token_id in zip(self._rows, wanted, strict=True):
            output.append(token_id)
            session.append(token_id)
            self.compared += 1


@pytest.mark.parametrize("seed", [1, 2])
def test_every_row_gets_the_token_of_its_own_request(seed: int) -> None:
    batch = Batch(seed)
    for _ in range(ROUNDS):
        batch.change()
        batch.step()
    assert batch.compared > ROUNDS


def test_requests_of_vllms_own_are_left_alone() -> None:
    # given
    set_variables()
    from vllm.v1.sample.logits_processor import BatchUpdate

    from rose_worker.vllm.sampling import Sampling

    sampling = Sampling(SimpleNamespace(), torch.device("cpu"), False)
    warm_up = SimpleNamespace(extra_args=None)
    # when
    sampling.update_state(BatchUpdate(1, [], [(0, warm_up, [1, 2], [])], []))
    logits = torch.randn(1, VOCAB)
    # then
    assert torch.equal(sampling.apply(logits.clone()), logits)
