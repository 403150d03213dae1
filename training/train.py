"""Trains the built-in model from nothing: `python -m training.train --out DIR`.

The text comes from the generator beside this file, so a training run needs no data and no
network. It writes into a folder of the caller's choice: the shipped files are replaced by hand.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from rose_cli.output import print_text
from roseinfer.demo_model import MODEL_PATH
from training import words
from training.hybrid import IGNORED, Hybrid, loss_of_states
from training.stories import ASSISTANT, END, SPECIAL_TOKENS, Document, documents

CONTEXT = 1024
LOG_EVERY = 50
CHAT_TEMPLATE = (
    "{%- for message in messages -%}\n"
    "    {%- if message.role not in ['system', 'user', 'assistant'] -%}\n"
    "        {{- raise_exception('Unknown role: ' ~ message.role) -}}\n"
    "    {%- endif -%}\n"
    "    {{- '<|' ~ message.role ~ '|>' ~ message.content | trim ~ '" + END + "' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "    {{- '" + ASSISTANT + "' -}}\n"
    "{%- endif -%}\n"
)
Example = tuple[list[int], int]
"""Token ids, and how many of the first ones are a prompt that carries no loss."""
Loss = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Of inputs and labels [N, T]: the next token's, which is reported, and what is made smaller."""


def train_tokenizer(seed: int, entries: int, texts: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE without a normalizer, so that every input decodes to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = (document.text for document in islice(documents(seed), texts))
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def new_model(tokenizer: PreTrainedTokenizerFast, layers: int) -> LlamaForCausalLM:
    """A Llama of about two million parameters with grouped queries and tied embeddings.

    The usual spread of 0.02 suits wide models: at this width attention would start out flat, and
    copying a name from the first sentence would be learned late.
    """
    end = tokenizer.convert_tokens_to_ids(END)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
        use_cache=True,
        initializer_range=192**-0.5,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight *= (2 * layers) ** -0.5
            elif "embed" in name:
                weight *= 0.5
    return model


def encode(tokenizer: PreTrainedTokenizerFast, batch: list[Document]) -> list[Example]:
    """The prompt is encoded by itself, as a server would encode it."""
    prompts = tokenizer([document.prompt for document in batch])["input_ids"]
    texts = tokenizer([document.text for document in batch])["input_ids"]
    return [
        ((prompt + text)[:CONTEXT], len(prompt))
        for prompt, text in zip(prompts, texts, strict=True)
    ]


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, tokens: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of about `tokens` tokens, of texts of one length, each from position 0.

    Padding instead of packing: no text ever sees another one, and texts of one length waste
    little. The order of the batches is shuffled, or the loss would follow the length.
    """
    stream = documents(seed)
    order = torch.Generator().manual_seed(seed)
    while True:
        examples = sorted(encode(tokenizer, list(islice(stream, 2048))), key=lambda e: len(e[0]))
        groups: list[list[Example]] = [[]]
        for example in examples:
            if len(example[0]) * (len(groups[-1]) + 1) > tokens and groups[-1]:
                groups.append([])
            groups[-1].append(example)
        for index in torch.randperm(len(groups), generator=order).tolist():
            yield collate(groups[index], tokenizer.convert_tokens_to_ids(END))


def drills(
    tokenizer: PreTrainedTokenizerFast, seed: int, tokens: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Words in random order, twice: the second half can only be learned by looking back.

    Without this start attention stays short-sighted for thousands of steps, and a hero who is
    Lily in the first sentence is Kate in the second.
    """
    pool = (*words.COMMON, *words.TRAITS)
    encoded = tokenizer([f" {word}" for word in pool])["input_ids"]
    first_ids = torch.tensor(sorted({ids[0] for ids in encoded}))
    order = torch.Generator().manual_seed(seed)
    while True:
        size = (2, 4, 8, 12)[int(torch.randint(4, (1,), generator=order))]
        rows = [
            torch.randperm(len(first_ids), generator=order)[:size] for _ in range(tokens // size)
        ]
        once = first_ids[torch.stack(rows)]
        labels = torch.cat((torch.full_like(once, IGNORED), once), dim=1)
        yield torch.cat((once, once), dim=1), labels


def collate(examples: list[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad on the right, where the causal mask keeps the padding out of sight."""
    width = max(len(ids) for ids, _ in examples)
    inputs = torch.full((len(examples), width), pad)
    labels = torch.full((len(examples), width), IGNORED)
    for row, (ids, prompt) in enumerate(examples):
        inputs[row, : len(ids)] = torch.tensor(ids)
        labels[row, prompt : len(ids)] = torch.tensor(ids[prompt:])
    return inputs, labels


def learning_rate(step: int, steps: int, peak: float) -> float:
    """A short warm-up, then a cosine down to nothing."""
    warmup = min(50, max(1, steps // 10))
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def new_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """Weight decay for the matrices only; norms and embeddings keep their scale."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98))


def next_token_loss(
    model: LlamaForCausalLM, inputs: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    states = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    loss = loss_of_states(model.lm_head, states, labels[:, 1:])
    return loss, loss


def train(
    model: torch.nn.Module,
    loss_of: Loss,
    tokenizer: PreTrainedTokenizerFast,
    args: argparse.Namespace,
) -> float:
    """Plain AdamW; returns the mean loss of the last steps."""
    optimizer = new_optimizer(model)
    data = chain(
        islice(drills(tokenizer, args.seed + 2, args.tokens // 2), args.drill),
        batches(tokenizer, args.seed + 1, args.tokens),
    )
    total = args.drill + args.steps
    started, seen, mean = time.monotonic(), 0, 0.0
    model.train()
    for step in range(total):
        since = step if step < args.drill else step - args.drill
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(since, args.steps, args.lr)
        inputs, labels = next(data)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss, total_loss = loss_of(inputs, labels)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(total_loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += inputs.numel()
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if step % LOG_EVERY == 0 or step == total - 1:
            rate = seen / (time.monotonic() - started)
            print_text(f"step {step + 1}/{total} loss {mean:.4f} tokens {seen} ({rate:.0f}/s)")
    return mean


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Weights as bfloat16, half the size; the configuration names that type."""
    end = tokenizer.convert_tokens_to_ids(END)
    stored = copy.deepcopy(model).eval().to(torch.bfloat16)
    stored.config.dtype = torch.bfloat16
    stored.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=end, pad_token_id=end, max_new_tokens=320
    )
    out.mkdir(parents=True, exist_ok=True)
    stored.save_pretrained(out)
    tokenizer.save_pretrained(out)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The defaults are those of the first of two runs behind the shipped files.

    The second was `--start FIRST --drill 0 --seed 3 --steps 900 --tokens 2048 --lr 1e-3`, after
    heroes and friends had got different names; the same bytes are therefore not to be expected.
    """
    parser = argparse.ArgumentParser(description="Train the built-in story model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model files")
    parser.add_argument("--steps", type=int, default=4000, help="optimizer steps on texts")
    parser.add_argument("--drill", type=int, default=600, help="copying steps before the texts")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per step")
    parser.add_argument("--lr", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--layers", type=int, default=4, help="decoder layers")
    parser.add_argument("--vocab", type=int, default=2048, help="tokenizer entries")
    parser.add_argument("--texts", type=int, default=20000, help="texts for the tokenizer")
    parser.add_argument("--seed", type=int, default=0, help="seed of text and weights")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--start", type=Path, help="continue from the model in this folder")
    kind.add_argument(
        "--hybrid",
        action="store_true",
        help="with states and a layer for further tokens, and the built-in model's tokenizer",
    )
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Tokenizer, model, training, files."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    if args.hybrid:
        _train_hybrid(args)
        return
    if args.start:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(args.start)
        model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(args.seed, args.vocab, args.texts)
        model = new_model(tokenizer, args.layers)
    print_text(f"{len(tokenizer)} tokenizer entries, {model.num_parameters()} parameters")
    loss = train(model, partial(next_token_loss, model), tokenizer, args)
    save(model, tokenizer, args.out)
    print_text(f"saved {args.out} (loss {loss:.4f})")


def _train_hybrid(args: argparse.Namespace) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL_PATH)
    hybrid = Hybrid(len(tokenizer), CONTEXT, tokenizer.convert_tokens_to_ids(END))
    parameters = sum(weight.numel() for weight in hybrid.parameters())
    print_text(f"{hybrid.model.num_parameters()} parameters, {parameters} with the layer")
    loss = train(hybrid, hybrid.loss, tokenizer, args)
    save(hybrid.model, tokenizer, args.out)
    hybrid.save_layer(args.out, torch.bfloat16)
    print_text(f"saved {args.out} (loss {loss:.4f})")


if __name__ == "__main__":
    main()
