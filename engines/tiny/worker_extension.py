"""Patches for vLLM on CPUs, loaded by `--worker-extension-cls`; importing this module applies them.

With a draft and any temperature but 0, vLLM 0.32 on a CPU expands each request's temperature, top-k and top-p over its
draft tokens in a kernel that converts its output to integers and fills the copy: the values used are uninitialized
memory. No draft token is ever accepted then, and answers are noise. A request with `top_k` also crashes the engine at
its first step without draft tokens, where there is no largest k. Both functions are replaced here with torch's own
operations.

Linux kills a process that uses AMX without permission (SIGILL). vLLM 0.32 does not ask for it: its attention relies on
oneDNN, which asks at the first matrix product that is large enough for AMX. Those of tiny models are not.

Delete this file when vLLM has fixed all three.
"""

import importlib
from collections.abc import Callable
from typing import Any


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Repeats the i-th value of `x` for each token of request i, with `replace_to` in place of `replace_from`.

    `cu_num_tokens` is the cumulative count of tokens per request; the last is `num_tokens`. Replaces vLLM's function of
    the same name.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced: Any = x.masked_fill(x == replace_from, replace_to)
    return replaced.repeat_interleave(counts, output_size=num_tokens)


def skip_empty_logits(apply_top_k_top_p: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """vLLM's `apply_top_k_top_p`, but empty logits are returned unchanged."""

    def apply(logits: Any, k: Any, p: Any) -> Any:
        return logits if logits.shape[0] == 0 else apply_top_k_top_p(logits, k, p)

    return apply


class SampleAsAsked:
    """The class that vLLM mixes into its worker. It is empty, since importing this module applies the patch."""


def permit_amx(torch: Any) -> None:
    """Asks Linux for the permission to use AMX; does nothing on other processors."""
    torch.cpu._init_amx()  # noqa: SLF001 - torch has no public function for it


def _repair(sampler: Any) -> None:
    sampler.expand_batch_to_tokens = expand_batch_to_tokens
    sampler.apply_top_k_top_p = skip_empty_logits(sampler.apply_top_k_top_p)


_repair(importlib.import_module("vllm.v1.sample.rejection_sampler"))
permit_amx(importlib.import_module("torch"))
