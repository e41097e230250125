"""What must hold of every history, whatever was broken meanwhile: pure functions that name what does not."""

import json
import re
from typing import Final

import msgspec

from tests.simulation.history import FOREVER, FaultRecord, History, RequestRecord

LEASE: Final = 2.0
"""Seconds; see router.shared.inflight_leases."""

PURGE_DELAY: Final = 1.0
"""Seconds. A purge is known everywhere, and the local copy is right, within this: that is what the local copy promises
(0.8 s of silence and what it takes to notice), and more than a round trip."""

ENDING_DELAY: Final = 2.0
"""Seconds beyond a lease that a request may take to end: reading the stream again each 0.5 s, Redis that is asked again
each 0.5 s, and the connections of a restarted process."""

OVERLAP: Final = 0.1
"""Seconds for which one generation may go on beside the next: what it takes to tell the engine."""

_TOKEN: Final = re.compile(r"g(\d+)\.(\d+) ")


class ReceivedAnswer(msgspec.Struct):
    """What a client got: tokens as (generation, position), whether it was told that this is all, and of an error."""

    tokens: list[tuple[int, int]]
    done: bool = False
    error: bool = False
    other: str = ""


def parse_answer(request: RequestRecord) -> ReceivedAnswer:
    """What a client's bytes say."""
    body = b"".join(request.body)
    if not request.stream or request.status != 200:
        try:
            page = json.loads(body) if body else {}
        except ValueError:
            return ReceivedAnswer([], other=repr(body))
        if "error" in page:
            return ReceivedAnswer([], error=True)
        choices = page.get("choices", [])
        return _parse_tokens("".join(choice["message"]["content"] for choice in choices), done=bool(choices))
    text, done, error = "", False, False
    for event in body.decode().split("\n\n"):
        data = event.removeprefix("data: ")
        if data == "[DONE]":
            done = True
        elif data:
            page = json.loads(data)
            error = error or "error" in page
            text += "".join(choice["delta"].get("content", "") for choice in page.get("choices", ()))
    said = _parse_tokens(text, done=done)
    said.error = error
    return said


def _parse_tokens(text: str, *, done: bool) -> ReceivedAnswer:
    found = [(int(generation), int(at)) for generation, at in _TOKEN.findall(text)]
    return ReceivedAnswer(found, done=done, other=_TOKEN.sub("", text))


def check(history: History) -> list[str]:
    """All that is wrong, a line each."""
    said = {asked.number: parse_answer(asked) for asked in history.requests}
    return [
        *one_generation(history, said),
        *no_purged_answer(history, said),
        *all_end(history),
        *no_failure_without_a_fault(history),
        *few_generations_at_once(history),
        *hits_were_in_redis(history, said),
    ]


def one_generation(history: History, answers: dict[int, ReceivedAnswer]) -> list[str]:
    """1. A client's bytes are a prefix of exactly one generation for its key; with `[DONE]`, all of it."""
    generations = {generation.number: generation for generation in history.generations}
    tenants: dict[int, str] = {}
    wrong = []
    for asked in history.requests:
        got = answers[asked.number]
        if got.other:
            wrong.append(f"1: {asked} got what no engine said: {got.other!r}")
        if not got.tokens:
            continue
        number = got.tokens[0][0]
        generation = generations[number]
        if [at for of, at in got.tokens if of == number] != list(range(len(got.tokens))):
            wrong.append(f"1: {asked} got {got.tokens}, which is no prefix of one generation")
        elif got.done and len(got.tokens) != generation.tokens:
            wrong.append(
                f"1: {asked} was told that {len(got.tokens)} tokens are all of {generation.tokens}: {generation}"
            )
        elif generation.question != asked.question:
            wrong.append(f"1: {asked} got another question's answer: {generation}")
        elif tenants.setdefault(number, asked.tenant) != asked.tenant:
            wrong.append(f"1: {asked} got the answer to {tenants[number]}: {generation}")
    return wrong


def no_purged_answer(history: History, answers: dict[int, ReceivedAnswer]) -> list[str]:
    """2. No request begun after a purge returned, and a moment, gets an older generation that it covers."""
    generations = {generation.number: generation for generation in history.generations}
    wrong = []
    for asked in history.requests:
        for number in sorted({number for number, _ in answers[asked.number].tokens}):
            for purge in history.purges:
                if (
                    purge.recorded
                    and purge.returned + PURGE_DELAY < asked.begun
                    and generations[number].begun < purge.begun
                    and purge.covers(asked.tenant, asked.question)
                ):
                    wrong.append(f"2: {asked} got what was purged: {generations[number]}; {purge}")
                    break
    return wrong


def all_end(history: History) -> list[str]:
    """3a. Every request ends within a lease and a moment of the last fault or of its engine's end."""
    wrong = []
    for asked in history.requests:
        last = max(
            [asked.begun]
            + [min(g.ended, asked.ended) for g in history.generations
               if g.question == asked.question and g.begun <= asked.ended and g.ended >= asked.begun]
            + [min(f.ended, asked.ended) for f in history.faults if f.begun <= asked.ended and f.ended >= asked.begun]
        )  # fmt: skip
        if asked.ended - last > LEASE + ENDING_DELAY:
            wrong.append(f"3: {asked} waited for {asked.ended - last:.1f} s although nothing went on")
    return wrong


def no_failure_without_a_fault(history: History) -> list[str]:
    """3b. A request fails only where its engine or a router failed, or Redis was away for long."""
    wrong = []
    for asked in history.requests:
        if asked.ending == "failed" and not any(f.breaks and _overlaps(f, asked) for f in history.faults):
            text = b"".join(asked.body)[-200:]
            wrong.append(f"3: {asked} failed although engine and leader lived: {text!r}")
    return wrong


def _overlaps(fault: FaultRecord, request: RequestRecord) -> bool:
    return fault.begun <= request.ended and fault.ended >= request.begun - LEASE - PURGE_DELAY


def few_generations_at_once(history: History) -> list[str]:
    """4. At most one generation for a key at once, and one more for each lease that was lost."""
    wrong = []
    tenants = _tenants(history)
    for new in history.generations:
        others = [
            old
            for old in history.generations
            if old.question == new.question
            and old.number < new.number
            and old.ended > new.begun + OVERLAP
            and tenants.get(old.number, "") == tenants.get(new.number, "")
        ]
        if not others:
            continue
        since = min(old.begun for old in others) - LEASE - PURGE_DELAY
        until = new.begun
        lost = sum(f.leases for f in history.faults if f.begun <= until and f.ended >= since)
        # A process that learns of a purge late gives up what it has begun in the meantime, each of them once.
        lost += history.processes * sum(
            p.begun <= until and min(p.returned, until) >= since
            for p in history.purges
            if p.question in (None, new.question)
        )
        if len(others) > lost:
            wrong.append(f"4: {new} began beside {len(others)}: {others[0]}")
    return wrong


def _tenants(history: History) -> dict[int, str]:
    """Whose each generation was, as far as anybody got of it."""
    return {number: asked.tenant for asked in history.requests for number, _ in parse_answer(asked).tokens[:1]}


def hits_were_in_redis(history: History, answers: dict[int, ReceivedAnswer]) -> list[str]:
    """5. What is given as stored is what Redis had within the last second, or has had since."""
    wrong = []
    for asked in history.requests:
        tokens = answers[asked.number].tokens
        if asked.cache != "HIT" or not tokens:
            continue
        number = tokens[0][0]
        states = history.entries.get((asked.tenant, asked.question), [])
        if not any(
            of == number and begun <= asked.ended and ended >= asked.begun - PURGE_DELAY
            for (begun, of), ended in zip(states, [*[at for at, _ in states[1:]], FOREVER], strict=True)
        ):
            wrong.append(f"5: {asked} got generation {number}, which Redis had not had for a second: {states}")
    return wrong
