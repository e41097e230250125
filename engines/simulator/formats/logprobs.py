"""Log probabilities in the two formats of OpenAI's API; the numbers are invented but reproducible."""

from collections.abc import Iterable, Sequence
from math import log

from xxhash import xxh32_intdigest

from engines.simulator.text.phrases import NOUNS
from engines.simulator.text.tokens import token_id

_END_TEXT = "</s>"


def _candidates(text: str, alternatives: int) -> list[tuple[str, float]]:
    """The chosen token and `alternatives` others, the most likely first."""
    digest = xxh32_intdigest(text.encode("utf-8", "replace"))
    share = 0.4 + (digest % 590) / 1000
    result, rest = [(text, log(share))], 1 - share
    for number in range(alternatives):
        rest /= 2
        result.append((f" {NOUNS[(digest + number) % len(NOUNS)]}", log(rest)))
    return result


def chat_logprobs(texts: Iterable[str], top: int) -> dict[str, object]:
    """The `logprobs` of a chat choice: one entry per token with its `top` most likely candidates."""
    return {"content": [_chat_token(text or _END_TEXT, top) for text in texts]}


def _chat_token(text: str, top: int) -> dict[str, object]:
    candidates = _candidates(text, max(0, top - 1))
    return {**_entry(*candidates[0]), "top_logprobs": [_entry(*candidate) for candidate in candidates[: max(0, top)]]}


def _entry(text: str, logprob: float) -> dict[str, object]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def completion_logprobs(prompt: Sequence[str], texts: Iterable[str], top: int, offset: int) -> dict[str, object]:
    """The `logprobs` of a completion choice that starts at character `offset`; a prompt's first token has none."""
    token_texts = [*prompt, *(text or _END_TEXT for text in texts)]
    candidates = [_candidates(text, max(0, top - 1)) for text in token_texts]
    offsets = []
    for text in token_texts:
        offsets.append(offset)
        offset += len(text)
    values: list[float | None] = [ranked[0][1] for ranked in candidates]
    tops: list[dict[str, float] | None] = [dict(ranked) for ranked in candidates]
    if prompt:
        values[0] = tops[0] = None
    return {"text_offset": offsets, "token_logprobs": values, "tokens": token_texts, "top_logprobs": tops}


def prompt_logprobs(prompt: Sequence[str], top: int) -> list[dict[str, object] | None]:
    """`prompt_logprobs` as vLLM returns them with an echoed prompt: by token id, with ranks."""
    result: list[dict[str, object] | None] = [None]
    for text in prompt[1:]:
        ranked = enumerate(_candidates(text, max(0, top - 1)), start=1)
        result.append(
            {
                str(token_id(candidate)): {"logprob": logprob, "rank": rank, "decoded_token": candidate}
                for rank, (candidate, logprob) in ranked
            }
        )
    return result
