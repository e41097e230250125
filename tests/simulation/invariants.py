"""The invariants of every history, whatever faults it has: pure functions that return the violations."""

import json
import re
from typing import Final

import msgspec

from tests.simulation.engine_losses import engines_survive, is_poison, may_have_ended_engines
from tests.simulation.history import FOREVER, FaultRecord, History, RequestRecord, SimulatedGeneration

LEASE: Final = 2.0
"""Seconds; see router.shared.inflight.inflight_leases."""

PURGE_DELAY: Final = 1.0
"""Seconds after which a purge is known everywhere and the local caches are right. The local cache promises this (0.8 s
of silence, and the time to notice it), and it is more than a round trip.
"""

ENDING_DELAY: Final = 2.0
"""Seconds beyond a lease that a request may take to end: the stream is read again every 0.5 s, Redis is probed again
every 0.5 s, and a restarted process has to connect.
"""

OVERLAP: Final = 0.1
"""Seconds for which a generation may overlap the next one: the time to stop the engine."""

_TOKEN: Final = re.compile(r"g(\d+)\.(\d+) ")
_THOUGHT: Final = re.compile(r"t(\d+)\.(\d+) ")


class ReceivedAnswer(msgspec.Struct):
    """What a client received: tokens as (generation, position), whether it received the end, and whether
    there was an error. `other`: text that no engine sent. `thoughts`: as the tokens, of the reasoning before them.
    """

    tokens: list[tuple[int, int]]
    done: bool = False
    error: bool = False
    other: str = ""
    thoughts: list[tuple[int, int]] = []


def parse_answer(request: RequestRecord) -> ReceivedAnswer:
    """Parse the bytes that a client received."""
    body = b"".join(request.body)
    if not request.stream or request.status != 200:
        try:
            document = json.loads(body) if body else {}
        except ValueError:
            return ReceivedAnswer([], other=repr(body))
        if "error" in document:
            return ReceivedAnswer([], error=True)
        choices = document.get("choices", [])
        return _parse_tokens("".join(choice["message"]["content"] for choice in choices), done=bool(choices))
    text, done, error, other = "", False, False, ""
    ids, roles, reasons, reasoning = set(), 0, [], ""
    for event in body.decode().split("\n\n"):
        if event.startswith(":"):  # a comment, while there is nothing else to send
            continue
        data = event.removeprefix("data: ")
        if done and data:
            other += data  # nothing comes after the end
        elif data == "[DONE]":
            done = True
        elif data:
            document = json.loads(data)
            error = error or "error" in document
            ids |= {(document["id"], document["created"])} if "id" in document else set()
            for choice in document.get("choices", ()):
                roles += "role" in choice["delta"]
                reasons += [choice["finish_reason"]] if choice.get("finish_reason") else []
                text += choice["delta"].get("content") or ""
                reasoning += choice["delta"].get("reasoning") or ""
    answer = _parse_tokens(text, done=done)
    answer.error = error
    if len(ids) > 1 or roles > 1 or len(reasons) > 1 or "abort" in reasons:
        other += f"ids {sorted(ids)}, {roles} roles, finish reasons {reasons}"
    answer.other += other + _THOUGHT.sub("", reasoning).replace("\n\n", "")
    answer.thoughts = [(int(generation), int(position)) for generation, position in _THOUGHT.findall(reasoning)]
    return answer


def _parse_tokens(text: str, *, done: bool) -> ReceivedAnswer:
    tokens = [(int(generation), int(position)) for generation, position in _TOKEN.findall(text)]
    return ReceivedAnswer(tokens, done=done, other=_TOKEN.sub("", text))


def check(history: History) -> list[str]:
    """All violations, a line each."""
    answers = {request.number: parse_answer(request) for request in history.requests}
    return [
        *one_generation(history, answers),
        *thoughts_are_whole(history, answers),
        *no_purged_answer(history, answers),
        *all_end(history),
        *no_failure_without_a_fault(history),
        *few_generations_at_once(history),
        *hits_were_in_redis(history, answers),
        *continuations_are_of_their_answer(history),
        *engines_survive(history),
    ]


def one_generation(history: History, answers: dict[int, ReceivedAnswer]) -> list[str]:
    """1. A client's bytes are a prefix of exactly one generation for its key; with `[DONE]`, all of it."""
    generations = {generation.number: generation for generation in history.generations}
    tenants: dict[int, str] = {}
    wrong = []
    for request in history.requests:
        answer = answers[request.number]
        if answer.other:
            wrong.append(f"1: {request} got text that no engine sent: {answer.other!r}")
        if not answer.tokens:
            continue
        number = answer.tokens[0][0]
        generation = generations[number]
        if [position for n, position in answer.tokens if n == number] != list(range(len(answer.tokens))):
            wrong.append(f"1: {request} got {answer.tokens}, which is no prefix of one generation")
        elif answer.done and len(answer.tokens) != generation.tokens:
            wrong.append(
                f"1: {request} received the end after {len(answer.tokens)} of {generation.tokens} tokens: {generation}"
            )
        elif generation.question != request.question:
            wrong.append(f"1: {request} got another question's answer: {generation}")
        elif tenants.setdefault(number, request.tenant) != request.tenant:
            wrong.append(f"1: {request} got the answer to {tenants[number]}: {generation}")
    return wrong


def thoughts_are_whole(history: History, answers: dict[int, ReceivedAnswer]) -> list[str]:
    """1. The reasoning of a stream is that of one engine after the other, each from its beginning."""
    wrong = []
    for request in history.requests:
        thoughts = answers[request.number].thoughts
        engines = list(dict.fromkeys(number for number, _ in thoughts))
        expected = [(number, at) for number in engines for at in range(sum(n == number for n, _ in thoughts))]
        others = [n for n in engines if history.generations[n - 1].question != request.question]
        if thoughts != expected or others:
            wrong.append(f"1: {request} got the reasoning {thoughts}")
    return wrong


def begins_anew(answer: ReceivedAnswer) -> bool:
    """Whether another engine began the answer anew."""
    engines = {number for number, _ in answer.thoughts}
    return len(engines) > 1 or bool(engines and answer.tokens and answer.tokens[0][0] not in engines)


def no_purged_answer(history: History, answers: dict[int, ReceivedAnswer]) -> list[str]:
    """2. A request that starts PURGE_DELAY after a purge returned gets no older generation that the purge covers."""
    generations = {generation.number: generation for generation in history.generations}
    wrong = []
    for request in history.requests:
        for number in sorted({number for number, _ in answers[request.number].tokens}):
            for purge in history.purges:
                if (
                    purge.recorded
                    and purge.returned + PURGE_DELAY < request.started
                    and generations[number].started < purge.started
                    and purge.covers(
                        request.tenant, request.question, by_standby=generations[number].engine == history.standby
                    )
                ):
                    wrong.append(f"2: {request} got what was purged: {generations[number]}; {purge}")
                    break
    return wrong


def all_end(history: History) -> list[str]:
    """3a. Every request ends within a lease and ENDING_DELAY of the last fault or of its engine's end."""
    wrong = []
    for request in history.requests:
        last = max(
            [request.started]
            + [min(g.ended, request.ended) for g in history.generations
               if g.question == request.question and g.started <= request.ended and g.ended >= request.started]
            + [min(f.ended, request.ended) for f in history.faults
               if f.started <= request.ended and f.ended >= request.started]
        )  # fmt: skip
        if request.ended - last > LEASE + ENDING_DELAY:
            wrong.append(f"3: {request} waited for {request.ended - last:.1f} s although nothing went on")
    return wrong


def no_failure_without_a_fault(history: History) -> list[str]:
    """3b. A request fails only if its engine or a router failed, or Redis was unavailable for long.

    One that was with two engines that a poison ended may fail: it could have been the cause.
    """
    wrong = []
    for request in history.requests:
        if is_poison(history, request.tenant, request.question) or may_have_ended_engines(history, request):
            continue
        if request.ending == "failed" and not any(f.breaks and _overlaps(f, request) for f in history.faults):
            text = b"".join(request.body)[-200:]
            wrong.append(f"3: {request} failed although engine and leader lived: {text!r}")
    return wrong


def _overlaps(fault: FaultRecord, request: RequestRecord) -> bool:
    return fault.started <= request.ended and fault.ended >= request.started - LEASE - PURGE_DELAY


def few_generations_at_once(history: History) -> list[str]:
    """4. At most one generation per key at a time, and one more for each lost lease."""
    wrong = []
    begun = [
        generation
        for generation in history.generations
        if not generation.is_continuation and not is_poison(history, generation.tenant, generation.question)
    ]
    for new in begun:
        others = [
            old
            for old in begun
            if old.question == new.question
            and old.number < new.number
            and old.ended > new.started + OVERLAP
            and old.tenant == new.tenant
            # An engine of another revision answers for a key of its own.
            and (old.engine == history.standby) == (new.engine == history.standby)
        ]
        if not others:
            continue
        since = min(old.started for old in others) - LEASE - PURGE_DELAY
        until = new.started
        lost = sum(f.leases for f in history.faults if f.started <= until and f.ended >= since)
        # Each process that learns of a purge late abandons, once, the generation that it started in the meantime.
        lost += history.processes * sum(
            p.started <= until and min(p.returned, until) >= since
            for p in history.purges
            if p.question in (None, new.question)
        )
        if len(others) > lost:
            wrong.append(f"4: {new} began beside {len(others)}: {others[0]}")
    return wrong


def hits_were_in_redis(history: History, answers: dict[int, ReceivedAnswer]) -> list[str]:
    """5. A HIT is an entry that Redis had within the last second, or has had since."""
    wrong = []
    for request in history.requests:
        tokens = answers[request.number].tokens
        if request.cache != "HIT" or not tokens:
            continue
        number = tokens[0][0]
        of_each_key = [
            each for (*owner, _), each in history.entries.items() if owner == [request.tenant, request.question]
        ]
        if not any(
            entry_number == number and state_start <= request.ended and ended >= request.started - PURGE_DELAY
            for states in of_each_key
            for (state_start, entry_number), ended in zip(
                states, [*[start for start, _ in states[1:]], FOREVER], strict=True
            )
        ):
            wrong.append(f"5: {request} got generation {number}, which Redis had not had for a second: {of_each_key}")
    return wrong


def continuations_are_of_their_answer(history: History) -> list[str]:
    """7. What goes on with an answer is another engine of the same revision, from a token that was sent, when the
    engines before it have ended; and it is asked for no more than is left.
    """
    wrong = list(history.defects)
    frozen = {fault.target for fault in history.faults if fault.kind == "frozen"}
    earlier: dict[int, list[SimulatedGeneration]] = {}
    for generation in history.generations:
        before = earlier.setdefault(generation.answer, [])
        if generation.is_continuation:
            sent = max((each.first + each.tokens_sent for each in before), default=0)
            if generation.first > sent or not before:
                wrong.append(f"7: {generation} goes on after {sent} tokens")
            elif (generation.engine == history.standby) != (before[0].engine == history.standby):
                wrong.append(f"7: {generation} is of another revision than {before[0]}")
            # An engine that goes on where it was to go on before has sent tokens that were lost with its connection.
            elif any(
                each.engine == generation.engine and each.tokens_sent and each.first < generation.first
                for each in before
            ):
                wrong.append(f"7: {generation} is by an engine that has broken the answer off")
            # An engine that does not run cannot see that the router has left it.
            elif any(each.ended > generation.started + OVERLAP and each.engine not in frozen for each in before):
                wrong.append(f"7: {generation} began beside {before[-1]}")
            elif generation.tokens > before[0].tokens:
                wrong.append(f"7: {generation} may have {generation.tokens} tokens, and {before[0]} {before[0].tokens}")
        before.append(generation)
    return wrong
