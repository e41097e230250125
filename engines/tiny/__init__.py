"""Small models for real vLLM engines, on a machine with no GPU, no network and no model weights.

`python -m engines.tiny make --out DIR` trains five small models from text that every Python installation has at hand.
They say nothing worth reading; what they are for is that vLLM loads them like any other model, and that each draft's
tokens are accepted by its target, so that speculative decoding, its metrics and its failures can be tried for real.

| folder          | architecture | vocabulary | what it is                                   |
| --------------- | ------------ | ---------- | -------------------------------------------- |
| `llama`         | Llama        | its own    | a target                                     |
| `qwen-draft`    | Qwen2        | its own    | drafts for `llama` across two vocabularies   |
| `code-draft`    | Llama        | of `llama` | drafts for `llama`, distilled on code alone  |
| `mistral`       | Mistral      | its own    | a target                                     |
| `mistral-draft` | Mistral      | of mistral | drafts for `mistral`                         |

A draft is worth having only where it says what its target would say. So a draft here starts as the first layer of its
target and is distilled from it, for the most part on what the target itself answers (Kim and Rush, "Sequence-level
knowledge distillation", 2016; Zhou et al., "DistillSpec", 2023).

The package needs torch, transformers and tokenizers, which vLLM brings along, and loads them only when it trains.
"""
