"""The shapes of the five models, in terms of the architectures that vLLM supports."""

from dataclasses import dataclass
from typing import Any

from engines.tiny.libraries import Libraries
from engines.tiny.vocabulary import Vocabulary

CONTEXT = 4096
"""Context length of every model, in tokens."""

HEAD_SIZE = 32
"""The smallest head size that vLLM's CPU attention supports."""


@dataclass(frozen=True)
class ModelShape:
    """One model: its architecture (`Llama`, `Qwen2`, `Mistral`), its width and its depth."""

    architecture: str
    vocabulary: Vocabulary
    hidden: int
    layers: int

    @property
    def heads(self) -> int:
        """Query heads; there are half as many key-value heads, as in the models that these stand for."""
        return self.hidden // HEAD_SIZE


def build_model(libraries: Libraries, shape: ModelShape, tokenizer: Any, seed: int) -> Any:
    """A model of this shape with random weights, which the seed determines."""
    libraries.torch.manual_seed(seed)
    eos_ids = [tokenizer.convert_tokens_to_ids(token) for token in shape.vocabulary.eos_tokens]
    config = getattr(libraries.transformers, f"{shape.architecture}Config")(
        vocab_size=shape.vocabulary.size,
        hidden_size=shape.hidden,
        intermediate_size=shape.hidden * 3,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=max(1, shape.heads // 2),
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=eos_ids if len(eos_ids) > 1 else eos_ids[0],
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = getattr(libraries.transformers, f"{shape.architecture}ForCausalLM")(config)
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = config.pad_token_id
    return model
