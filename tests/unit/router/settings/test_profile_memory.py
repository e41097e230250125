"""Each profile fits its cards: weights and KV cache by arithmetic, which is also the table in docs/running-engines.md.

No model is loaded. The shapes are those of the models' config.json on the Hugging Face hub.
"""

import re
from typing import Any, NamedTuple, get_args

import pytest

from router.settings.profiles import PROFILES, ProfileName
from tests.support.paths import ROOT

GIB = 1 << 30
RESERVED = 2 * GIB
"""On each card, for activations, CUDA graphs and what vLLM and CUDA allocate themselves."""
CARDS = {"24 GB": 23028, "48 GB": 46068, "80 GB": 81559}
"""MiB that nvidia-smi reports for the smallest of each size: A10, L40S, H100."""
AWQ, FP8, BF16 = 4 + 16 / 128 + 4 / 128, 8.0, 16.0  # bits per weight; AWQ has a scale and a zero for 128 weights


class Shape(NamedTuple):
    """A model's config.json. Embeddings and the output layer have 16 bits; the output layer may be the embeddings."""

    bits: float
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    @property
    def weights(self) -> float:
        """Bytes."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        linear = self.layers * (attention + 3 * self.hidden * self.intermediate)
        return linear * self.bits / 8 + (1 if self.tied else 2) * self.vocab * self.hidden * 2

    @property
    def kv_per_token(self) -> int:
        """Bytes, in 16 bits."""
        return self.layers * self.kv_heads * self.head_dim * 2 * 2


SHAPES = {
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": Shape(AWQ, 32, 4096, 14336, 32, 8, 128, 128256, False),
    "stelterlab/Mistral-Small-24B-Instruct-2501-AWQ": Shape(AWQ, 40, 5120, 32768, 32, 8, 128, 131072, False),
    "casperhansen/llama-3.3-70b-instruct-awq": Shape(AWQ, 80, 8192, 28672, 64, 8, 128, 128256, False),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": Shape(FP8, 80, 8192, 28672, 64, 8, 128, 128256, False),
    "meta-llama/Llama-3.2-1B-Instruct": Shape(BF16, 16, 2048, 8192, 32, 8, 64, 128256, True),
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(BF16, 24, 896, 4864, 14, 2, 64, 151936, True),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": Shape(BF16, 24, 896, 4864, 14, 2, 64, 151936, True),
    # Qwen2.5-0.5B with Mistral's vocabulary; an output layer of its own is the larger case.
    "alamios/Mistral-Small-3.1-DRAFT-0.5B": Shape(BF16, 24, 896, 4864, 14, 2, 64, 131072, False),
}


def rows() -> dict[str, dict[str, str]]:
    """The table of profiles in the documentation, by profile and column."""
    page = (ROOT / "docs" / "running-engines.md").read_text(encoding="utf-8")
    table = page.partition("\n## Profiles\n")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return {line[0].strip("`"): dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def computed(profile: Any, cards: str) -> dict[str, str]:
    """The numbers of a row."""
    launch = profile["launch"]
    models = [SHAPES[launch["target"]], SHAPES[launch["draft"]]]
    count = launch.get("tensor_parallel_size", 1)
    usable = CARDS[re.sub(r"^\d x ", "", cards)] * (1 << 20) * launch["gpu_memory_utilization"] - RESERVED
    weights, per_token = sum(m.weights for m in models), sum(m.kv_per_token for m in models)
    room = count * usable - weights
    tokens = int(room / per_token)
    return {
        "cards": cards if count == 1 else f"{count} x {cards.partition(' x ')[2]}",
        "weights": f"{weights / GIB:.1f} GiB",
        "KV cache": f"{room / GIB:.1f} GiB",
        "per token": f"{per_token / 1024:.0f} KiB",
        "tokens": f"{tokens // 1000},000",
        "full contexts": f"{tokens // profile['max_model_len']}",
    }


@pytest.mark.parametrize("name", get_args(ProfileName))
def test_a_profile_fits_its_cards_as_the_documentation_says(name: str) -> None:
    row = rows()[name]
    wanted = computed(PROFILES[name], row["cards"])
    assert {column: row[column] for column in wanted} == wanted
    assert int(wanted["full contexts"]) >= 2


def test_the_documentation_names_the_models_of_each_profile() -> None:
    table = rows()
    assert set(table) == set(PROFILES)
    for name, profile in PROFILES.items():
        models = (f"`{profile['launch'][key]}`" for key in ("target", "draft"))
        assert table[name]["target and draft"] == ", ".join(models)
        assert table[name]["task"] == profile.get("task", "any")
        assert table[name]["`max_model_len`"] == str(profile["max_model_len"])
