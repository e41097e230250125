"""Small models for real vLLM engines, on a machine without GPU, network and model weights.

`python -m engines.tiny make --out DIR` trains five small models from text that every Python installation contains.
Their answers make no sense. Their purpose is that vLLM loads them like any other model, and that each target accepts
its drafts' tokens, so that speculative decoding, its metrics and its failures can be tested for real.

| folder          | architecture | vocabulary | what it is                                   |
| --------------- | ------------ | ---------- | -------------------------------------------- |
| `llama`         | Llama        | its own    | a target                                     |
| `qwen-draft`    | Qwen2        | its own    | drafts for `llama` across two vocabularies   |
| `code-draft`    | Llama        | of `llama` | drafts for `llama`, distilled on code alone  |
| `mistral`       | Mistral      | its own    | a target                                     |
| `mistral-draft` | Mistral      | of mistral | drafts for `mistral`                         |

A draft is useful only if it predicts its target's tokens. So a draft starts as the first layer of its target and is
distilled from it, mostly on the target's own answers (Kim and Rush, "Sequence-level knowledge distillation", 2016;
Zhou et al., "DistillSpec", 2023).

The package needs torch, transformers and tokenizers, which vLLM depends on, and imports them only to train.
"""
