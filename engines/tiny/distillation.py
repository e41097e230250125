"""Drafts distilled from their targets, also across two vocabularies.

vLLM passes a draft its target's tokens. If the vocabularies differ, it translates each token by its spelling, uses the
draft's unknown token if there is no such spelling, and lets the draft choose among shared tokens only (token-level
intersection; Timor et al., "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous
vocabularies", 2025). A draft is trained here under the same conditions. With one vocabulary for both, the translation
is the identity, and nothing else changes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engines.tiny.libraries import Libraries
from engines.tiny.training import AnsweredPrompt, Batch

_ANSWER_TOKENS = 72  # maximum length of an answer
_MIN_GROUP_SIZE = 4


@dataclass(frozen=True)
class VocabularyMapping:
    """The mapping between two vocabularies, as index tensors.

    `to_draft[t]` is the draft's token for the target's token t; `shared_target[i]` and `shared_draft[i]` are the
    target's and the draft's id of the i-th shared token.
    """

    to_draft: Any
    shared_target: Any
    shared_draft: Any


def map_vocabularies(libraries: Libraries, target_tokenizer: Any, draft_tokenizer: Any) -> VocabularyMapping:
    """Pairs the tokens of two tokenizers by their spelling."""
    torch = libraries.torch
    target, draft = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    shared = sorted(target.keys() & draft.keys(), key=target.__getitem__)
    unknown = draft_tokenizer.unk_token_id
    to_draft = torch.full((len(target),), draft_tokenizer.eos_token_id if unknown is None else unknown)
    shared_target = torch.tensor([target[token] for token in shared])
    shared_draft = torch.tensor([draft[token] for token in shared])
    to_draft[shared_target] = shared_draft
    return VocabularyMapping(to_draft, shared_target, shared_draft)


def init_from_target(libraries: Libraries, target: Any, draft: Any, mapping: VocabularyMapping) -> None:
    """Initializes the draft as the first layers of its target, with the embeddings mapped token by token."""
    torch = libraries.torch
    target_weights = target.state_dict()
    with torch.no_grad():
        for name, weight in draft.state_dict().items():
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                weight[mapping.shared_draft] = target_weights[name][mapping.shared_target]
            elif name in target_weights and target_weights[name].shape == weight.shape:
                weight.copy_(target_weights[name])


def distillation_loss(
    libraries: Libraries, target: Any, draft: Any, mapping: VocabularyMapping
) -> Callable[[Batch], Any]:
    """The distance of the draft from its target on the tokens with a weight: forward KL over the shared tokens."""
    torch = libraries.torch
    functional = torch.nn.functional

    def loss_of(batch: Batch) -> Any:
        # The logits at a token predict the next one.
        predicting = functional.pad(batch.weights[:, 1:], (0, 1)) > 0
        with torch.no_grad():
            target_logits = _logits(target, batch.rows, predicting)[:, mapping.shared_target]
            target_logprobs = functional.log_softmax(target_logits, dim=-1)
        logits = _logits(draft, mapping.to_draft[batch.rows], predicting)[:, mapping.shared_draft]
        logprobs = functional.log_softmax(logits, dim=-1)
        return functional.kl_div(logprobs, target_logprobs, log_target=True, reduction="batchmean")

    return loss_of


def _logits(model: Any, rows: Any, positions: Any) -> Any:
    """The logits at some positions only: the matrix product with the vocabulary is most of a tiny model's work."""
    return model.lm_head(model.model(input_ids=rows).last_hidden_state[positions])


def generate_answers(libraries: Libraries, target: Any, prompts: Sequence[Sequence[int]]) -> Iterator[AnsweredPrompt]:
    """The target's answers at temperature 0, each up to its end.

    Prompts of equal length are answered together, so that none needs padding; rare lengths are left out.
    """
    torch = libraries.torch
    groups: dict[int, list[Sequence[int]]] = {}
    for prompt in dict.fromkeys(map(tuple, prompts)):
        groups.setdefault(len(prompt), []).append(prompt)
    eos_ids = target.generation_config.eos_token_id
    stop_ids = set(eos_ids) if isinstance(eos_ids, list) else {eos_ids}
    for length, group in sorted(groups.items()):
        if len(group) < _MIN_GROUP_SIZE:
            continue
        prompt_batch = torch.tensor(group)
        output = target.generate(
            prompt_batch, attention_mask=torch.ones_like(prompt_batch), max_new_tokens=_ANSWER_TOKENS, do_sample=False
        )
        for row in output.tolist():
            end = next((at for at in range(length, len(row)) if row[at] in stop_ids), len(row) - 1)
            yield AnsweredPrompt(row[: end + 1], length)


def acceptance_rate(
    libraries: Libraries, draft: Any, mapping: VocabularyMapping, held_out: Sequence[AnsweredPrompt]
) -> float:
    """The share (0 to 1) of the answers' tokens that the draft predicts, each from the tokens before it.

    Approximately what vLLM counts as the acceptance rate of first draft tokens at temperature 0.
    """
    torch = libraries.torch
    correct = total = 0
    with torch.no_grad():
        for answer in held_out:
            logits = draft(input_ids=mapping.to_draft[torch.tensor([answer.tokens[:-1]])]).logits[0]
            predicted = mapping.shared_target[logits[:, mapping.shared_draft].argmax(-1)]
            agreed = (predicted == torch.tensor(answer.tokens[1:]))[answer.prompt_length - 1 :]
            correct, total = correct + int(agreed.sum()), total + agreed.numel()
    return correct / total if total else 0.0
