"""Training: a target on text, then a draft on what its target says.

Both walk the same loop, `descend`; they differ in the loss of one batch. Steps are counted, not timed, so that a seed
gives the same models on the same machine; a limit of seconds only ever cuts a training short.
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
"""Tokens of a training row; a long one now and then, so that prompts with documents are not a world unseen."""
_LONG_EVERY = 12
_BATCH_TOKENS = 2240
_WARMUP = 0.05

ReportProgress = Callable[[float, float], None]
"""Called with the part of the work that is done (0 to 1) and the loss, in nats a token."""


@dataclass(frozen=True)
class TrainingSchedule:
    """How long and how fast to learn: optimizer steps, highest learning rate, and a limit in seconds (None: none)."""

    steps: int
    learning_rate: float = 3e-3
    limit_s: float | None = None


def encode(tokenizer: Any, dialogue: Dialogue) -> list[int]:
    """A dialogue in tokens, through the chat template; open for the answer where the dialogue has none."""
    messages = [{"role": "user", "content": dialogue.question}]
    if dialogue.system:
        messages.insert(0, {"role": "system", "content": dialogue.system})
    if dialogue.answer:
        messages.append({"role": "assistant", "content": dialogue.answer})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=not dialogue.answer)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def token_batches(libraries: Libraries, sequences: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
    """Endless batches of token rows: the sequences one behind the other, shuffled anew each time round."""
    rng = random.Random(seed)  # noqa: S311 - an order of texts, no secret
    stream: list[int] = []
    number = 0
    while True:
        number += 1
        row = _LONG_ROW_TOKENS if number % _LONG_EVERY == 0 else _ROW_TOKENS
        wanted = max(1, _BATCH_TOKENS // row) * row
        while len(stream) < wanted:
            for sequence in rng.sample(sequences, len(sequences)):
                stream.extend(sequence)
        yield libraries.torch.tensor(stream[:wanted]).view(-1, row)
        del stream[:wanted]


def train(
    libraries: Libraries,
    model: Any,
    loss_of: Callable[[Any], Any],
    batches: Iterator[Any],
    schedule: TrainingSchedule,
    report: ReportProgress,
) -> float:
    """Train `model` on `feed` by `loss_of(batch)` and give the last loss, smoothed."""
    torch = libraries.torch
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    started = time.monotonic()
    smooth = 0.0
    for step in range(schedule.steps):
        done = step / schedule.steps
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
    """The loss of plain language modelling."""
    return lambda rows: model(input_ids=rows, labels=rows).loss


def _learning_rate_factor(done: float) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if done < _WARMUP:
        return (done + 0.01) / (_WARMUP + 0.01)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (done - _WARMUP) / (1 - _WARMUP)))
