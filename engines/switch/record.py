"""The versions that are in effect after switches, in a file, so that the next `roundhouse up` starts them again.

The file has no secrets: it names models only, and a digest of the configured launch. If the configuration of an engine
has changed since, the configuration counts.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from engines.spec import EngineSpec
from engines.switch.version import Version, apply_version
from router.shared.engines.announcements import ModelRevision

FILE_NAME: Final = "switched.json"


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`configured`: the digest of the spec that was configured at the switch. `previous`: for a rollback."""

    configured: str
    version: Version
    previous: Version | None = None


class Restored(NamedTuple):
    """What to start.

    - `records`: those that are in effect.
    - `revisions`: those of all models whose engines are started. Redis may have another one, of a switch whose record
      was lost, or never written.
    - `notes`: lines for a person.
    """

    specs: list[EngineSpec]
    records: dict[str, EngineRecord]
    revisions: dict[str, ModelRevision]
    notes: list[str]


def spec_digest(spec: EngineSpec) -> str:
    """Of what a switch replaces. Settings that are not set count as absent, so that a new one changes no digest."""
    settings = msgspec.to_builtins(spec.launch) if spec.launch is not None else {}
    launch = {name: value for name, value in settings.items() if value not in (None, [], {})}
    return hashlib.sha256(msgspec.json.encode([spec.model, spec.revision, launch], order="sorted")).hexdigest()


def read_records(state: Path) -> dict[str, EngineRecord]:
    """By engine; none if there is no file, or if it cannot be read."""
    try:
        return msgspec.json.decode((state / FILE_NAME).read_bytes(), type=dict[str, EngineRecord])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def write_records(state: Path, records: Mapping[str, EngineRecord]) -> None:
    """Replaces the file atomically. Raises OSError."""
    path, temporary = state / FILE_NAME, state / f"{FILE_NAME}.new"
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(msgspec.json.encode(records))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def restore(specs: Sequence[EngineSpec], records: Mapping[str, EngineRecord]) -> Restored:
    """Applies the records to the configured specs.

    All answers of a model come from one target. So the records of a model are ignored together if one of its engines
    was configured anew, or if its engines would have different revisions.
    """
    in_effect: dict[str, EngineRecord] = {}
    in_redis: dict[str, ModelRevision] = {}
    notes = []
    for model in dict.fromkeys(spec.model for spec in specs if spec.launch is not None or spec.name in records):
        engines = [spec for spec in specs if spec.model == model]
        recorded = {spec.name: records[spec.name] for spec in engines if spec.name in records}
        revisions = {
            recorded[spec.name].version.revision if spec.name in recorded else spec.revision for spec in engines
        }
        is_unchanged = all(
            spec_digest(spec) == recorded[spec.name].configured for spec in engines if spec.name in recorded
        )
        if is_unchanged and len(revisions) == 1:
            in_effect |= recorded
            revision = revisions.pop()
            notes += [f"{name}: {record.version.models()}, as it was switched" for name, record in recorded.items()]
        else:
            notes.append(f"model {model}: its configuration has changed; earlier switches are ignored")
            revision = engines[0].revision
        in_redis[model] = ModelRevision(revision=revision, configured=engines[0].revision)
    applied = [
        apply_version(spec, in_effect[spec.name].version)
        if spec.name in in_effect and spec.launch is not None
        else spec
        for spec in specs
    ]
    return Restored(applied, in_effect, in_redis, notes)
