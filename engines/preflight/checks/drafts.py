"""Do target and draft fit together: their vocabularies and their contexts?"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from engines.preflight.finding import Finding, error, note, warning
from engines.preflight.observations import EngineFacts, Model, Observations
from engines.preflight.wording import listed

DRAFT_MODEL: Final = "draft_model"
"""The speculative method with a model of its own; the others have no vocabulary or context of their own."""

_SMALL_OVERLAP: Final = 0.2
_VOCABULARY: Final = "launch.heterogeneous_vocab"
_SPACES: Final = ("\u0120", "\u2581")
"""How tokenizers write the space that a token starts with: byte-level BPE, and SentencePiece."""


class _Comparison(msgspec.Struct, frozen=True):
    """None is unknown.

    - `sizes_differ`: of `vocab_size`; vLLM refuses the pair then, unless vocabularies may be heterogeneous.
    - `tokens_differ`: whether any token has another id; vLLM does not check it.
    - `overlap`: the share of the draft's tokens that the target has too, under any id.
    """

    sizes_differ: bool | None
    tokens_differ: bool | None
    overlap: float | None

    @property
    def differ(self) -> bool | None:
        if self.sizes_differ or self.tokens_differ:
            return True
        return None if self.tokens_differ is None else False


def check_drafts(observed: Observations) -> Iterator[Finding]:
    for engine in observed.engines:
        yield from _check_target_context(engine)
        if engine.draft is not None and engine.options.method == DRAFT_MODEL:
            yield from _check_vocabularies(engine, engine.draft)
            yield from _check_draft_context(engine, engine.draft)


def served_context(engine: EngineFacts) -> int | None:
    """The longest context that the engine serves, in tokens."""
    return engine.options.max_model_len or engine.target.shape.context


def _check_vocabularies(engine: EngineFacts, draft: Model) -> Iterator[Finding]:
    found = _compare(engine.target, draft)
    is_set = engine.options.heterogeneous_vocab
    if found.differ is None:
        yield _unknown(engine, is_set=is_set)
    elif found.differ and not is_set:
        yield error(engine.name, _VOCABULARY, f"{_difference(engine, draft, found)}; {_effect(found)}",
                    "Set heterogeneous_vocab = true, or choose a draft with the target's tokenizer.")  # fmt: skip
    elif found.differ:
        yield from _judge_overlap(engine, draft, found)
    elif is_set:
        problem = "target and draft have the same vocabulary, but their tokens are translated"
        yield warning(engine.name, _VOCABULARY, problem, "Set heterogeneous_vocab = false.")
    else:
        yield note(engine.name, "launch.draft", "has the vocabulary of the target")


def _unknown(engine: EngineFacts, *, is_set: bool) -> Finding:
    how = "tokens will be translated" if is_set else "tokens will not be translated"
    problem = f"the vocabularies of target and draft cannot be compared, since files are missing; {how}"
    return note(engine.name, _VOCABULARY, problem, "Run preflight again when both models are there.")


def _difference(engine: EngineFacts, draft: Model, found: _Comparison) -> str:
    parts = []
    if found.sizes_differ:
        sizes = f"{engine.target.shape.vocab_size:,} and {draft.shape.vocab_size:,}"
        parts.append(f"vocab_size of target and draft differ ({sizes})")
    elif found.tokens_differ:
        parts.append("target and draft have different tokens under the same ids")
    if found.overlap is not None:
        parts.append(f"the target has {_percent(found.overlap)} of the draft's tokens")
    return listed(parts)


def _effect(found: _Comparison) -> str:
    if found.sizes_differ:
        return "vLLM refuses to start"
    return "vLLM starts, but hardly accepts a token of the draft"


def _judge_overlap(engine: EngineFacts, draft: Model, found: _Comparison) -> Iterator[Finding]:
    difference = _difference(engine, draft, found)
    if found.overlap is not None and found.overlap < _SMALL_OVERLAP:
        remedy = "Choose a draft with the target's tokenizer."
        yield warning(engine.name, "launch.draft", f"{difference}: too few for a draft to pay", remedy)
    else:
        yield note(engine.name, "launch.draft", f"{difference}; heterogeneous_vocab is in effect")


def _percent(share: float) -> str:
    # Not rounded to 100 % while a token is missing.
    return f"{int(100 * share)} %"


def _check_target_context(engine: EngineFacts) -> Iterator[Finding]:
    longest, wanted = engine.target.shape.context, engine.options.max_model_len
    if longest is not None and wanted is not None and wanted > longest and not engine.options.allows_long_context:
        problem = f"{wanted:,} tokens are more than the target's context of {longest:,}; vLLM refuses to start"
        yield error(engine.name, "max_model_len", problem, f"Set max_model_len to at most {longest}.")


def _check_draft_context(engine: EngineFacts, draft: Model) -> Iterator[Finding]:
    served, longest = served_context(engine), draft.shape.context
    if served is not None and longest is not None and longest < served:
        problem = (
            f"its context is {longest:,} tokens, and the engine serves {served:,}; "
            f"vLLM stops speculation for a request that is longer than {longest:,}"
        )
        remedy = f"Set max_model_len to {longest}, or choose a draft with a longer context."
        yield warning(engine.name, "launch.draft", problem, remedy)


def _compare(target: Model, draft: Model) -> _Comparison:
    sizes = (target.shape.vocab_size, draft.shape.vocab_size)
    sizes_differ = None if None in sizes else sizes[0] != sizes[1]
    if target.tokens is None or draft.tokens is None:
        return _Comparison(sizes_differ, None, None)
    same = target.tokens == draft.tokens
    return _Comparison(sizes_differ, not same, 1.0 if same else _overlap(target.tokens, draft.tokens))


def _overlap(target: Mapping[str, int], draft: Mapping[str, int]) -> float:
    """As vLLM matches tokens: by spelling, with the space at the start written in either way."""
    draft_tokens = set(_spellings(draft))
    return len(draft_tokens.intersection(_spellings(target))) / max(1, len(draft_tokens))


def _spellings(tokens: Iterable[str]) -> Iterable[str]:
    return (f" {token[1:]}" if token.startswith(_SPACES) else token for token in tokens)
