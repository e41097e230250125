"""Training: a target on text, then a draft on its target's output.

Both use the same loop, `train`; they differ in the loss of one batch. Steps are counted, not timed, so that a seed
gives the same models on the same machine; a limit of seconds can only shorten a training.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engines.tiny.corpus import Dialogue
from engines.tiny.libraries import Libraries

_ROW_TOKENS, _LONG_ROW_TOKENS = 160, 640
"""Tokens per training row; every _LONG_EVERYth batch has long rows, so that the models see prompts with documents."""
_LONG_EVERY = 12
_BATCH_TOKENS = 2240
_WARMUP = 0.05

ReportProgress = Callable[[float, float], None]
"""Called with the share of the work that is done (0 to 1) and the loss in nats per token."""


@dataclass(frozen=True)
class TrainingSchedule:
    """Number of optimizer steps, highest learning rate, and a limit in seconds (None: none)."""

    steps: int
    learning_rate: float = 3e-3
    limit_s: float | None = None


def encode(tokenizer: Any, dialogue: Dialogue) -> list[int]:
    """A dialogue in tokens, through the chat template; without an answer it ends with the generation prompt."""
    messages = [{"role": "user", "content": dialogue.question}]
    if dialogue.system:
        messages.insert(0, {"role": "system", "content": dialogue.system})
    if dialogue.answer:
        messages.append({"role": "assistant", "content": dialogue.answer})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=not dialogue.answer)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def token_batches(libraries: Libraries, sequences: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
    """Endless batches of token rows: the sequences concatenated, shuffled again in each epoch."""
    rng = random.Random(seed)  # noqa: S311 - an order of texts, no secret
    stream: list[int] = []
    number = 0
    while True:
        number += 1
        row = _LONG_ROW_TOKENS if number % _LONG_EVERY == 0 else _ROW_TOKENS
        batch_size = max(1, _BATCH_TOKENS // row) * row
        while len(stream) < batch_size:
            for sequence in rng.sample(sequences, len(sequences)):
                stream.extend(sequence)
        yield libraries.torch.tensor(stream[:batch_size]).view(-1, row)
        del stream[:batch_size]


def train(
    libraries: Libraries,
    model: Any,
    loss_of: Callable[[Any], Any],
    batches: Iterator[Any],
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


def language_model_loss(model: Any) -> Callable[[Any], Any]:
    return lambda rows: model(input_ids=rows, labels=rows).loss


def _learning_rate_factor(done: float) -> float:
    """Linear warm-up, then a cosine decay to a twentieth."""
    if done < _WARMUP:
        # Not 0 at the start, so that the first step already learns.
        return (done + 0.01) / (_WARMUP + 0.01)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (done - _WARMUP) / (1 - _WARMUP)))
