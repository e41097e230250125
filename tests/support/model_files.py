"""Folders of models in the layout of Transformers, a few hundred bytes each, for tests that load no model."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

CONFIG: Final[dict[str, Any]] = {
    "vocab_size": 3, "max_position_embeddings": 4096, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 128, "torch_dtype": "float32",
}  # fmt: skip


def write_model(
    folder: Path, *, config: Mapping[str, Any] | None = None, tokens: Mapping[str, int] | None = None,
    added: Sequence[tuple[str, int]] = (), generation: Mapping[str, Any] | None = None, shards: int = 1,
) -> Path:  # fmt: skip
    """A complete model whose weights are 64 bytes in each of `shards` files; `config` overrides CONFIG."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | dict(config or {})))
    vocabulary = {"a": 0, "b": 1, "c": 2} if tokens is None else dict(tokens)
    tokenizer = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "added_tokens": [{"content": content, "id": number, "special": True} for content, number in added],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if shards == 1:
        write_safetensors(folder / "model.safetensors")
        return folder
    names = [f"model-{number}.safetensors" for number in range(1, shards + 1)]
    for name in names:
        write_safetensors(folder / name)
    index = {"metadata": {"total_size": 64 * shards}, "weight_map": {f"w{name}": name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_safetensors(path: Path) -> None:
    """A file with one tensor of 64 bytes."""
    tensor = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
