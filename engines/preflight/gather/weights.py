"""The size of a model's weights, and whether its files are complete, without reading the weights.

A safetensors file starts with the length of its header in 8 bytes and the header in JSON, which has the offsets of
every tensor. So a file that was only partly downloaded or copied is found by its size.
Source: the format's specification in the README of huggingface/safetensors.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.preflight.gather.json_file import UnreadableFileError, read_json_file

_INDEX: Final = "model.safetensors.index.json"
_MAX_INDEX: Final = 32 << 20  # bytes; that of a model with 60,000 tensors has 5 MB
_MAX_HEADER: Final = 32 << 20
_OTHER_FORMATS: Final = ("*.bin", "*.pt", "*.gguf")


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class _Tensor(msgspec.Struct, frozen=True):
    data_offsets: tuple[int, int]


class Weights(msgspec.Struct, frozen=True):
    """The bytes of the weights, None if there are none; and what is wrong with the files, a phrase for each."""

    size: int | None
    damage: tuple[str, ...] = ()


def read_weights(folder: Path) -> Weights:
    try:
        files = _safetensors_files(folder)
    except UnreadableFileError as failure:
        return Weights(None, (str(failure),))
    if files:
        missing = [file.name for file in files if not file.exists()]
        damage = [_absent(missing, len(files))] if missing else []
        sizes = []
        for file in files:
            if file.exists():
                size, problem = _file_size(file)
                sizes.append(size)
                damage += [problem] if problem is not None else []
        return Weights(sum(sizes) if not missing else None, tuple(damage))
    for pattern in _OTHER_FORMATS:
        if others := list(folder.glob(pattern)):
            return Weights(sum(file.stat().st_size for file in others if file.exists()))
    return Weights(None, ("no weights (*.safetensors)",))


def _safetensors_files(folder: Path) -> Sequence[Path]:
    """The files of the index, else those that vLLM would load. Raises UnreadableFileError for a damaged index."""
    index = folder / _INDEX
    if index.exists():
        names = set(read_json_file(index, _Index, _MAX_INDEX).weight_map.values())
        return [folder / name for name in sorted(names)]
    # Next to these, some models have their weights a second time, in Mistral's own format.
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))


def _absent(names: Sequence[str], count: int) -> str:
    return f"{len(names)} of {count} files of weights are missing, such as {names[0]}"


def _file_size(file: Path) -> tuple[int, str | None]:
    """The bytes of a file's tensors, and what is wrong with it."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = opened.read(length) if length <= min(_MAX_HEADER, size) else None
        tensors = dict(_tensors(header)) if header is not None else None
    except (OSError, msgspec.DecodeError):
        tensors = None
    if tensors is None:
        return size, f"{file.name} is not a safetensors file"
    data = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if 8 + length + data > size:
        return data, f"{file.name} is cut off: it has {size:,} of {8 + length + data:,} bytes"
    return data, None


def _tensors(header: bytes) -> Iterator[tuple[str, _Tensor]]:
    entries: dict[str, Any] = msgspec.json.decode(header, type=dict[str, Any])
    return ((name, msgspec.convert(entry, _Tensor)) for name, entry in entries.items() if name != "__metadata__")
