"""The worker's sampling inside vLLM, as one of its logits processors.

vLLM calls it with the logits of a step and then takes the largest of each row. Here
`roseinfer.sampling` draws the token of a row, by the request's own parameters and its noise of
(seed, position), and the token's logit is raised to infinity. So the token is a function of the
logits, the parameters and the tokens before, as in roseinfer's own engine.

It may run in a process of vLLM's executor. So what it needs of a request travels with the request,
and it follows the request's tokens by itself.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample import sampler as vllm_sampler
from vllm.v1.sample.logits_processor import LogitsProcessor as VllmLogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from rose.sampling import SamplingParams
from rose_worker.vllm.model import session_factory
from rose_worker.vllm.ranks import end_with_parent
from roseinfer.logits_processors.processor import LogitsProcessor
from roseinfer.sampling.sampler import sample_tokens
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import SamplingRequest, ends_of

#: The key in vLLM's `extra_args` of a request.
_KEY = "rose"


def _ranks(logprobs: Tensor, own: Tensor) -> Tensor:
    return (logprobs >= own).sum(-1)


# Nobody here reads the ranks that vLLM counts beside log-probabilities, but it has torch compile a
# kernel for them: for seconds, in the step of the first job that asks, and with a compiler that a
# small image lacks.
vllm_sampler.batched_count_greater_than = _ranks


def extra_args(params: SamplingParams, prompt_length: int) -> dict[str, Any]:
    """What `Sampling` needs of a request. Ids after `prompt_length` were generated before."""
    return {_KEY: [params.model_dump_json(exclude_defaults=True), prompt_length]}


class _Row:
    """A request in vLLM's batch; `output` is the list of its tokens that vLLM goes on writing."""

    def __init__(
        self,
        params: SamplingParams,
        resumed: Sequence[int],
        output: list[int],
        processor: LogitsProcessor | None,
        ends: frozenset[int],
    ) -> None:
        self._params = params
        self._processor = processor
        self._ends = ends
        self._resumed = len(resumed)
        self._output = output
        self._followed = 0  # tokens of `output`
        for token_id in resumed:
            self._follow(token_id)

    def request(self) -> SamplingRequest:
        """How to sample the next token, after all tokens so far."""
        for token_id in self._output[self._followed :]:
            self._follow(token_id)
        self._followed = len(self._output)
        return SamplingRequest(self._params, self._resumed + self._followed, self._processor)

    def _follow(self, token_id: int) -> None:
        if self._processor is None:
            return
        self._processor.add(token_id)
        if self._processor.matcher is not None and token_id not in self._ends:
            self._processor.matcher.advance(token_id)


class Sampling(VllmLogitsProcessor):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, *_device: Any) -> None:
        end_with_parent()
        self._config = vllm_config
        self._rows: dict[int, _Row] = {}
        """by index in the batch; without those that take the largest logit as it is"""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._rows, batch_update, self._row)

    def apply(self, logits: Tensor) -> Tensor:
        if not self._rows:
            return logits
        indices = sorted(self._rows)
        index = torch.tensor(indices, device=logits.device)
        values = logits if len(indices) == len(logits) else logits[index]
        ids = sample_tokens(values, [self._rows[i].request() for i in indices])
        logits[index, ids.to(logits.device)] = torch.inf
        return logits

    def _row(self, params: Any, prompt_ids: list[int] | None, output: list[int]) -> _Row | None:
        given = (params.extra_args or {}).get(_KEY)
        if given is None:  # vLLM's own requests, such as those that it warms up with
            return None
        encoded, prompt_length = given
        own = SamplingParams.model_validate_json(encoded)
        if not (own.do_sample or own.needs_logits_processor):
            return None
        known = prompt_ids or []
        processor, ends = None, frozenset[int]()
        if own.needs_logits_processor:
            processor = self._factory.logits_processor(own, known[:prompt_length])
            ends = frozenset(ends_of(own, self._factory.eos_token_ids))
        return _Row(own, known[prompt_length:], output, processor, ends)

    @cached_property
    def _factory(self) -> SessionFactory:
        return session_factory(self._config)
