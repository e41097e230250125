"""Training: a target on text, then a draft on its target's output.

Both use the same loop, `train`; they differ in the loss of one batch. Steps are counted, not timed, so that a seed
gives the same models on the same machine; a limit of seconds can only shorten a training.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from engines.tiny.corpus import Dialogue
from engines.tiny.libraries import Libraries

T = TypeVar("T")

_FIRST_TOKEN_WEIGHT = 10.0
"""Weight of an answer's first token in the loss. It decides between prose and code."""

_OPENING_TOKENS = 8

_ROW_TOKENS, _LONG_ROW_TOKENS = 160, 640
"""Tokens per training row; every _LONG_EVERYth batch has long rows, so that the models see prompts with documents."""
_LONG_EVERY = 12
_BATCH_TOKENS = 2240
_WARMUP = 0.05

ReportProgress = Callable[[float, float], None]
"""Called with the share of the work that is done (0 to 1) and the loss in nats per token."""


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, and the weight of each token in the loss, as tensors."""

    rows: Any
    weights: Any


@dataclass(frozen=True)
class TrainingSchedule:
    """Number of optimizer steps, highest learning rate, and a limit in seconds (None: none)."""

    steps: int
    learning_rate: float = 3e-3
    limit_s: float | None = None


def shortened(schedule: TrainingSchedule, part: float, limit_s: float | None) -> TrainingSchedule:
    """The schedule with a part (0 to 1) of its steps, at least one, and a limit in seconds."""
    return replace(schedule, steps=max(1, round(schedule.steps * part)), limit_s=limit_s)


@dataclass(frozen=True)
class AnsweredPrompt:
    """A prompt and the answer to it, in tokens; the first `prompt_length` of them are the prompt."""

    tokens: list[int]
    prompt_length: int


def encode(tokenizer: Any, dialogue: Dialogue) -> AnsweredPrompt:
    """A dialogue in tokens, through the chat template; the prompt ends with the generation prompt."""
    messages = [{"role": "user", "content": dialogue.question}]
    if dialogue.system:
        messages.insert(0, {"role": "system", "content": dialogue.system})
    prompt = _tokens(tokenizer, messages, add_generation_prompt=True)
    if not dialogue.answer:
        return AnsweredPrompt(prompt, len(prompt))
    messages.append({"role": "assistant", "content": dialogue.answer})
    return AnsweredPrompt(_tokens(tokenizer, messages, add_generation_prompt=False), len(prompt))


def opening(answered: AnsweredPrompt) -> AnsweredPrompt:
    """The prompt with the first tokens of its answer, which decide the others; training on it is cheaper."""
    return replace(answered, tokens=answered.tokens[: answered.prompt_length + _OPENING_TOKENS])


def _tokens(tokenizer: Any, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def token_batches(libraries: Libraries, endless: Iterator[AnsweredPrompt], prompt_weight: float) -> Iterator[Batch]:
    """Endless batches: the dialogues concatenated to rows of equal length.

    `prompt_weight` is the weight of a prompt's token in the loss; an answer's token has 1, except the first.
    """
    torch = libraries.torch
    for number in itertools.count(1):
        row_tokens = _LONG_ROW_TOKENS if number % _LONG_EVERY == 0 else _ROW_TOKENS
        rows = [_row(endless, prompt_weight, row_tokens) for _ in range(_BATCH_TOKENS // row_tokens)]
        yield Batch(torch.tensor([tokens for tokens, _ in rows]), torch.tensor([weights for _, weights in rows]))


def _row(answered: Iterator[AnsweredPrompt], prompt_weight: float, length: int) -> tuple[list[int], list[float]]:
    """The tokens and weights of a row, which starts with a prompt; the last dialogue may be cut off."""
    row: list[int] = []
    weights: list[float] = []
    while len(row) < length:
        one = next(answered)
        row += one.tokens
        # Nothing predicts that a prompt begins: the answer before it may be an opening only.
        weights += [0.0] + [prompt_weight] * (one.prompt_length - 1) + [_FIRST_TOKEN_WEIGHT]
        weights += [1.0] * (len(row) - len(weights))
    return row[:length], weights[:length]


def shuffled_epochs(examples: Sequence[T], seed: int) -> Iterator[T]:
    """The examples without an end, shuffled again in each epoch."""
    rng = random.Random(seed)  # noqa: S311 - an order of texts, no secret
    while True:
        yield from rng.sample(examples, len(examples))


def train(
    libraries: Libraries,
    model: Any,
    loss_of: Callable[[Batch], Any],
    batches: Iterator[Batch],
    schedule: TrainingSchedule,
    report: ReportProgress,
) -> float:
    """Trains `model` on `batches` with the loss `loss_of(batch)` and returns the last loss, smoothed."""
    torch = libraries.torch
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    started = time.monotonic()
    smooth = 0.0
    for step in range(schedule.steps):
        done = step / schedule.steps
        # The time limit counts as progress too, so that the learning rate still decays to its end.
        if schedule.limit_s is not None:
            done = max(done, (time.monotonic() - started) / schedule.limit_s)
            if done >= 1:
                break
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * _learning_rate_factor(done)
        loss = loss_of(next(batches))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
        report(done, smooth)
    report(1.0, smooth)
    model.eval()
    return smooth


def language_model_loss(libraries: Libraries, model: Any) -> Callable[[Batch], Any]:
    """The weighted mean cross-entropy of each token after those before it."""
    functional = libraries.torch.nn.functional

    def loss_of(batch: Batch) -> Any:
        # The last token of a row predicts nothing; a weight of 0 is cheaper than a copy of the logits without it.
        logits = model(input_ids=batch.rows).logits.flatten(0, 1)
        losses = functional.cross_entropy(logits, batch.rows.roll(-1, 1).flatten(), reduction="none")
        weights = functional.pad(batch.weights[:, 1:], (0, 1)).flatten()
        return (losses * weights).sum() / weights.sum()

    return loss_of


def _learning_rate_factor(done: float) -> float:
    """Linear warm-up, then a cosine decay to a twentieth."""
    if done < _WARMUP:
        # Not 0 at the start, so that the first step already learns.
        return (done + 0.01) / (_WARMUP + 0.01)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (done - _WARMUP) / (1 - _WARMUP)))
