"""Reads a model's configuration, tokenizer and weight headers, without loading the model."""

from pathlib import Path
from typing import Final

import msgspec

from engines.preflight.gather.json_file import UnreadableFileError, read_json_file
from engines.preflight.gather.model_folder import find_model_folder
from engines.preflight.gather.model_shape import ModelConfig, model_shape
from engines.preflight.gather.weights import read_weights
from engines.preflight.observations import Model, ModelShape

MAX_CONFIG: Final = 4 << 20
"""Bytes of config.json and generation_config.json."""

MAX_TOKENIZER: Final = 128 << 20
"""Bytes of tokenizer.json; those with 260,000 tokens have 34 MB."""


class _GenerationConfig(msgspec.Struct, frozen=True):
    min_p: float | None = None


class _AddedToken(msgspec.Struct, frozen=True):
    content: str
    id: int


class _Vocabulary(msgspec.Struct, frozen=True):
    """Of BPE and WordPiece: ids by token; of Unigram: the tokens with their scores, in the order of their ids."""

    vocab: dict[str, int] | list[tuple[str, float]]


class _Tokenizer(msgspec.Struct, frozen=True):
    model: _Vocabulary
    added_tokens: list[_AddedToken] = []


def read_model(
    name: str, *, is_local: bool, revision: str | None, cache: Path, generation_config: str = "auto"
) -> Model:
    """`generation_config` is vLLM's option: `auto`, `vllm` or a folder."""
    try:
        folder = find_model_folder(name, is_local=is_local, revision=revision, cache=cache)
        if folder is None:
            return Model(name=name, is_local=is_local, folder=None)
        return _read_folder(name, folder, is_local=is_local, generation_config=generation_config)
    except OSError as failure:  # a folder that this user may not search, or a name that is too long
        damage = f"cannot be read ({failure.strerror})"
        return Model(name=name, is_local=is_local, folder=str(failure.filename), damage=(damage,))


def _read_folder(name: str, folder: Path, *, is_local: bool, generation_config: str) -> Model:
    weights = read_weights(folder)
    damage = list(weights.damage)
    try:
        shape = model_shape(read_json_file(folder / "config.json", ModelConfig, MAX_CONFIG))
    except UnreadableFileError as failure:
        shape = ModelShape()
        damage.insert(0, str(failure))
    try:
        tokens = _read_tokens(folder)
    except UnreadableFileError as failure:
        tokens = None
        damage.append(str(failure))
    return Model(
        name=name, is_local=is_local, folder=str(folder), damage=tuple(damage), shape=shape,
        weight_bytes=weights.size, tokens=tokens, min_p=_read_min_p(folder, generation_config),
    )  # fmt: skip


def _read_tokens(folder: Path) -> dict[str, int] | None:
    """None without a tokenizer.json: there are tokenizers in other formats. Raises UnreadableFileError."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    tokenizer = read_json_file(path, _Tokenizer, MAX_TOKENIZER)
    vocabulary = tokenizer.model.vocab
    tokens = vocabulary if isinstance(vocabulary, dict) else {token: n for n, (token, _) in enumerate(vocabulary)}
    return tokens | {added.content: added.id for added in tokenizer.added_tokens}


def _read_min_p(folder: Path, generation_config: str) -> float | None:
    if generation_config == "vllm":
        return None
    source = folder if generation_config == "auto" else Path(generation_config)
    try:
        return read_json_file(source / "generation_config.json", _GenerationConfig, MAX_CONFIG).min_p
    except UnreadableFileError:  # most often it is missing, which is fine; vLLM ignores a damaged one too
        return None
