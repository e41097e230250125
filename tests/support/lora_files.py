"""A LoRA adapter in PEFT's layout, made on the spot: random weights that change every answer of a small Llama."""

import json
import random
import struct
from array import array
from pathlib import Path

_RANK = 8


def write_lora_adapter(folder: Path, base: Path, seed: int) -> Path:
    """An adapter of rank 8 for the query and value projections of the model in `base`."""
    config = json.loads((base / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    outputs = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    rng = random.Random(seed)
    header: dict[str, object] = {}
    data = b""
    for layer in range(config["num_hidden_layers"]):
        for name, size in outputs.items():
            for half, shape in (("A", (_RANK, hidden)), ("B", (size, _RANK))):
                values = array("f", [rng.gauss(0, 1) for _ in range(shape[0] * shape[1])]).tobytes()
                header[f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)],
                }  # fmt: skip
                data += values
    encoded = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": _RANK,
        "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none", "target_modules": list(outputs),
    }))  # fmt: skip
    return folder
