"""Small models for real vLLM engines, on a machine without GPU, network and model weights.

`python -m engines.tiny make --out DIR` trains five small models from text in this project and in the standard library.
Their answers do not match the questions: a request for code gets some Python function, any other a paragraph of prose.
Their purpose is that vLLM loads them like any other model, that each target accepts its drafts' tokens, and that a
draft is better at the task that it was trained on. So speculative decoding, the selection of engines by task, metrics
and failures can be tested for real.

| folder          | architecture | vocabulary | what it is                                                  |
| --------------- | ------------ | ---------- | ----------------------------------------------------------- |
| `llama`         | Llama        | its own    | a target                                                    |
| `qwen-draft`    | Qwen2        | its own    | drafts for `llama` across two vocabularies, trained on chat |
| `code-draft`    | Llama        | of `llama` | drafts for `llama`, trained on code                         |
| `mistral`       | Mistral      | its own    | a target                                                    |
| `mistral-draft` | Mistral      | of mistral | drafts for `mistral`, trained on both                       |

A draft is useful only if it predicts its target's tokens. So a draft starts as the first layer of its target and is
distilled from it, in part on the target's own answers (Kim and Rush, "Sequence-level knowledge distillation", 2016;
Zhou et al., "DistillSpec", 2023).

The package needs torch, transformers and tokenizers, which vLLM depends on, and imports them only to train.
"""
