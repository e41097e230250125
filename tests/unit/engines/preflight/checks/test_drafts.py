"""Vocabularies and contexts of target and draft."""

from typing import Any

from msgspec.structs import replace

from engines.preflight.checks.drafts import check_drafts
from engines.preflight.finding import Finding
from engines.preflight.observations import Model
from tests.support.preflight_facts import LLAMA_8B, TOKENS, make_engine, make_model, make_observations


def findings(target: Model, draft: Model | None, **options: Any) -> list[Finding]:
    return list(check_drafts(make_observations(make_engine(target=target, draft=draft, **options))))


def finding(target: Model, draft: Model | None, **options: Any) -> Finding:
    (found,) = findings(target, draft, **options)
    return found


def with_vocabulary(size: int, tokens: dict[str, int] | None) -> Model:
    return make_model(f"/models/{size}", replace(LLAMA_8B, vocab_size=size), tokens=tokens)


def test_without_a_draft_there_is_nothing_to_compare() -> None:
    assert findings(make_model(), None) == []


def test_the_same_vocabulary_is_noted() -> None:
    found = finding(make_model(), make_model("/models/draft"))
    assert (found.severity, found.problem) == ("note", "has the vocabulary of the target")


def test_sizes_that_differ_are_an_error_unless_vocabularies_may_differ() -> None:
    found = finding(with_vocabulary(4, TOKENS), with_vocabulary(8, {"a": 0, "b": 1, "x": 2, "y": 3}))
    assert (found.severity, found.setting) == ("error", "launch.heterogeneous_vocab")
    assert "vocab_size of target and draft differ (4 and 8)" in found.problem
    assert "vLLM refuses to start" in found.problem
    assert "heterogeneous_vocab = true" in found.remedy


def test_other_tokens_under_the_same_ids_are_an_error_that_vllm_does_not_report() -> None:
    found = finding(with_vocabulary(4, TOKENS), with_vocabulary(4, {"a": 1, "b": 0, "\u0120c": 2, "d": 3}))
    assert found.severity == "error"
    assert "different tokens under the same ids" in found.problem
    assert "hardly accepts a token" in found.problem


def test_sizes_that_differ_by_padding_alone_are_refused_too() -> None:
    found = finding(with_vocabulary(4, TOKENS), with_vocabulary(8, TOKENS))
    assert found.severity == "error"
    assert "the target has 100 % of the draft's tokens" in found.problem


def test_with_translation_the_overlap_is_noted() -> None:
    draft = with_vocabulary(5, {"a": 7, "b": 1, "\u2581c": 2, "x": 3, "y": 4})
    found = finding(with_vocabulary(4, TOKENS), draft, heterogeneous_vocab=True)
    assert found.severity == "note"
    assert "the target has 60 % of the draft's tokens" in found.problem


def test_a_small_overlap_is_a_warning() -> None:
    draft = with_vocabulary(6, {"a": 0, "u": 1, "v": 2, "w": 3, "x": 4, "y": 5})
    found = finding(with_vocabulary(4, TOKENS), draft, heterogeneous_vocab=True)
    assert (found.severity, found.setting) == ("warning", "launch.draft")
    assert "16 %" in found.problem


def test_translation_between_equal_vocabularies_is_a_warning() -> None:
    found = finding(make_model(), make_model("/models/draft"), heterogeneous_vocab=True)
    assert found.severity == "warning"
    assert "heterogeneous_vocab = false" in found.remedy


def test_vocabularies_that_cannot_be_compared_are_no_error() -> None:
    found = finding(with_vocabulary(4, TOKENS), with_vocabulary(4, None))
    assert found.severity == "note"
    assert "cannot be compared" in found.problem


def test_sizes_that_differ_are_an_error_even_without_tokenizers() -> None:
    found = finding(with_vocabulary(4, None), with_vocabulary(8, None))
    assert found.severity == "error"
    assert "tokens" not in found.problem


def test_eagle_has_no_vocabulary_or_context_of_its_own() -> None:
    draft = make_model("/models/eagle", replace(LLAMA_8B, vocab_size=4, context=2048), tokens=None)
    assert findings(make_model(), draft, method="eagle") == []


def test_a_draft_with_a_shorter_context_is_a_warning_with_the_length_that_both_have() -> None:
    short = make_model("/models/draft", replace(LLAMA_8B, context=2048))
    found = findings(make_model(), short)[1]
    assert (found.severity, found.setting) == ("warning", "launch.draft")
    assert "its context is 2,048 tokens, and the engine serves 8,192" in found.problem
    assert "max_model_len to 2048" in found.remedy


def test_without_max_model_len_the_context_of_the_target_counts() -> None:
    short = make_model("/models/draft", replace(LLAMA_8B, context=8192))
    assert len(findings(make_model(), short)) == 1
    assert "the engine serves 131,072" in findings(make_model(), short, max_model_len=None)[1].problem


def test_a_max_model_len_beyond_the_context_of_the_target_is_an_error() -> None:
    short = make_model(shape=replace(LLAMA_8B, context=4096))
    found = finding(short, None)
    assert (found.severity, found.setting) == ("error", "max_model_len")
    assert "at most 4096" in found.remedy
    assert findings(short, None, allows_long_context=True) == []
    assert findings(short, None, max_model_len=4096) == []
