"""Makes a cross-encoder of a small Llama: `python -m tests.support.tiny_reranker MODEL FOLDER`, in the Python of vLLM.

Its scores mean nothing, but they are those of one model, and vLLM serves it with `--runner pooling`. It takes seconds,
since nothing is trained.
"""

import sys
from typing import Any


def main(source: str, target: str) -> None:
    import torch  # type: ignore[import-not-found, unused-ignore]  # only where vLLM is installed
    import transformers  # type: ignore[import-not-found, unused-ignore]

    torch.manual_seed(1)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
    model.config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
