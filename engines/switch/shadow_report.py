"""Compares the answers of the old and the new engine to the same requests."""

from collections.abc import Sequence

import msgspec

_PREVIEW = 2000
"""Characters of an answer in the report."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's answer to one request; `error` if it gave none. `tokens`: None if it does not report them."""

    text: str = ""
    tokens: int | None = None
    seconds: float = 0.0
    error: str | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`deterministic`: temperature 0 or a seed. Only then must the texts agree, and only if the target is the same."""

    prompt: str
    deterministic: bool
    same: bool
    old: Answer
    new: Answer


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of requests; tokens and seconds are sums over the requests that both engines answered."""

    requests: int
    same: int
    different: int
    deterministic_different: int
    failed_old: int
    failed_new: int
    tokens_old: int
    tokens_new: int
    seconds_old: float
    seconds_new: float
    comparisons: list[Comparison]


def compare_answers(prompts: Sequence[tuple[str, bool]], old: Sequence[Answer], new: Sequence[Answer]) -> ShadowReport:
    """`prompts`: the text of each, and whether it is deterministic."""
    comparisons = [
        Comparison(
            prompt=text, deterministic=deterministic,
            same=before.error is None and after.error is None and before.text == after.text,
            old=_shortened(before), new=_shortened(after),
        )
        for (text, deterministic), before, after in zip(prompts, old, new, strict=True)
    ]  # fmt: skip
    answered = [one for one in comparisons if one.old.error is None and one.new.error is None]
    different = [one for one in answered if not one.same]
    return ShadowReport(
        requests=len(comparisons),
        same=len(answered) - len(different),
        different=len(different),
        deterministic_different=sum(one.deterministic for one in different),
        failed_old=sum(one.old.error is not None for one in comparisons),
        failed_new=sum(one.new.error is not None for one in comparisons),
        tokens_old=sum(one.old.tokens or 0 for one in answered),
        tokens_new=sum(one.new.tokens or 0 for one in answered),
        seconds_old=round(sum(one.old.seconds for one in answered), 3),
        seconds_new=round(sum(one.new.seconds for one in answered), 3),
        comparisons=comparisons,
    )


def _shortened(answer: Answer) -> Answer:
    return msgspec.structs.replace(answer, text=answer.text[:_PREVIEW], seconds=round(answer.seconds, 3))
