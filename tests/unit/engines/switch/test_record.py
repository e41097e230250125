"""The versions in effect are kept in a file, and count while the configuration is as it was."""

from pathlib import Path
from typing import Any

import msgspec

from engines.spec import EngineSpec, LaunchSpec
from engines.switch.record import FILE_NAME, EngineRecord, read_records, restore, spec_digest, write_records
from engines.switch.version import Version
from router.shared.engines.announcements import ModelRevision


def spec(name: str = "e0", **launch: Any) -> EngineSpec:
    return EngineSpec(
        name=name, model="llama", task="any", url="http://127.0.0.1:8001", served_model="served", revision="r1",
        launch=LaunchSpec(**{"target": "old", "draft": f"draft-{name}", **launch}),
    )  # fmt: skip


def record(of: EngineSpec, **version: Any) -> EngineRecord:
    return EngineRecord(
        configured=spec_digest(of),
        version=Version(**{"target": "new", "revision": "r2", **version}),
        previous=Version(target="old", revision="r1"),
    )


def test_what_was_written_is_read_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    records = {"e0": record(spec())}
    write_records(tmp_path, {})
    write_records(tmp_path, records)
    assert read_records(tmp_path) == records
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_missing_or_damaged_file_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path) == {}
    (tmp_path / FILE_NAME).write_bytes(b'{"e0": {"configured"')
    assert read_records(tmp_path) == {}


def test_the_file_contains_no_environment_and_no_arguments(tmp_path: Path) -> None:
    secret = spec(env={"HF_TOKEN": "secret-token"}, args=["--api-key", "secret-key"])
    write_records(tmp_path, {"e0": record(secret)})
    assert b"secret" not in (tmp_path / FILE_NAME).read_bytes()


def test_an_unchanged_configuration_gets_the_versions_that_were_in_effect() -> None:
    specs = [spec("e0"), spec("e1")]
    records = {"e0": record(specs[0], draft="better"), "e1": record(specs[1])}
    restored = restore(specs, records)
    launches = [one.launch for one in restored.specs]
    assert [(launch.target, launch.draft) for launch in launches if launch is not None] == [
        ("new", "better"),
        ("new", None),
    ]
    assert restored.records == records
    assert restored.revisions == {"llama": ModelRevision(revision="r2", configured="r1")}
    assert restored.notes == ["e0: new + better, as it was switched", "e1: new, as it was switched"]


def test_a_changed_configuration_of_one_engine_ends_the_switch_of_the_whole_model() -> None:
    before = [spec("e0"), spec("e1")]
    after = [spec("e0"), spec("e1", target="newest")]
    restored = restore(after, {one.name: record(one) for one in before})
    assert restored.specs == after
    assert restored.records == {}
    assert restored.revisions == {"llama": ModelRevision(revision="r1", configured="r1")}
    assert restored.notes == ["model llama: its configuration has changed; earlier switches are ignored"]


def test_an_engine_that_was_added_since_does_not_mix_two_targets() -> None:
    specs = [spec("e0"), spec("e1")]
    assert restore(specs, {"e0": record(specs[0])}).records == {}


def test_a_switched_draft_of_one_engine_needs_no_record_of_the_others() -> None:
    specs = [spec("e0"), spec("e1")]
    drafted = {"e0": record(specs[0], target="old", draft="better", revision="r1")}
    assert restore(specs, drafted).records == drafted


def test_records_of_engines_that_are_gone_are_ignored() -> None:
    restored = restore([spec("e1")], {"e0": record(spec("e0"))})
    assert (restored.records, restored.notes) == ({}, [])


def test_without_a_record_the_configured_revision_is_in_effect_whatever_redis_has() -> None:
    assert restore([spec()], {}).revisions == {"llama": ModelRevision(revision="r1", configured="r1")}


def test_an_engine_that_is_not_started_here_any_more_ends_the_switch_of_its_model() -> None:
    elsewhere = msgspec.structs.replace(spec("e0"), launch=None)
    restored = restore([elsewhere, spec("e1")], {"e0": record(spec("e0"))})
    assert (restored.specs, restored.records) == ([elsewhere, spec("e1")], {})
    assert restored.notes == ["model llama: its configuration has changed; earlier switches are ignored"]


def test_the_digest_depends_on_the_launch_and_the_revision_and_on_no_setting_that_is_not_set() -> None:
    assert spec_digest(spec()) == spec_digest(spec(env={}, quantization=None))
    changed = [spec(env={"A": "1"}), spec(draft="other"), spec(gpus=[1])]
    assert len({spec_digest(one) for one in (spec(), *changed)}) == 4
