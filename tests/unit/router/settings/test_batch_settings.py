"""[batch]: files and batches."""

from unittest.mock import patch

import pytest

from router.settings import ConfigurationError, missing_extra, parse
from router.settings.tables import BatchSettings
from router.settings.units import Bytes, Seconds

REST = '[[model]]\nname = "llama"\n[[engine]]\nname = "one"\nmodel = "llama"\nurl = "http://127.0.0.1:8001"\n'


def batch(lines: str, rest: str = "") -> BatchSettings:
    return parse(f"[batch]\n{lines}\n{rest}{REST}", {}).batch


def test_it_is_turned_off_by_default() -> None:
    assert parse(REST, {}).batch == BatchSettings(folder="")


def test_the_settings_are_read() -> None:
    found = batch('folder = "/var/lib/rh"\nmax_file = "1GiB"\nfile_ttl = "0s"\nmax_kv_usage = 0.5')
    assert (found.folder, found.max_file, found.file_ttl, found.max_kv_usage) == (
        "/var/lib/rh",
        Bytes(1 << 30),
        Seconds(0),
        0.5,
    )
    assert batch('file_ttl = "1h"').file_ttl == Seconds(3600)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('max_file = "0B"', "batch.max_file: '0B' must be greater than 0"),
        ('file_ttl = "59m"', "batch.file_ttl: '59m' is too short; the minimum is 1h, or 0 for ever"),
        ("max_lines = 0", "batch.max_lines"),
        ("max_files = 0", "batch.max_files"),
        ("max_batches = 0", "batch.max_batches"),
        ("max_in_flight = 0", "batch.max_in_flight"),
        ("max_kv_usage = 0.0", "batch.max_kv_usage"),
        ('hours = "22-6"', "batch.hours: '22-6' must be two times of the day, such as 22:00-06:00"),
        ("max_kv_usage = 1.1", "batch.max_kv_usage"),
        ('folder = "a\\u0000"', "batch.folder: is no path"),
        ('folder = "s3://key:secret@bucket/files"', "batch.folder: has credentials; the client of"),
        ('folder = "file:///var/lib/rh"', "batch.folder: 'file:///var/lib/rh' must be a path, or a URL such as s3://"),
        ('folder = "s3:///files"', "batch.folder: 's3:///files' must be a path, or a URL"),
    ],
)
def test_a_mistake_is_named_with_its_place(lines: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        batch(lines)
    assert message in str(refused.value)


def test_credentials_are_not_shown() -> None:
    with pytest.raises(ConfigurationError) as refused:
        batch('folder = "s3://key:secret@bucket/files"')
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("folder", "missing"),
    [
        ("/var/lib/rh", None),
        ("s3://bucket/files", None),
        ("gs://bucket/files", "batch.folder: Please install gcsfs to access Google Storage"),
        ("cloud://bucket", "batch.folder: fsspec knows no `cloud://`"),
    ],
)
def test_the_package_for_a_url_must_be_installed(folder: str, missing: str | None) -> None:
    assert missing_extra(parse(f'[batch]\nfolder = "{folder}"\n{REST}', {})) == missing


def test_the_extra_for_object_stores_is_named() -> None:
    with_store = parse(f'[batch]\nfolder = "s3://bucket/files"\n{REST}', {})
    with patch("importlib.util.find_spec", lambda _: None):
        assert missing_extra(parse(REST, {})) is None
        assert missing_extra(with_store) == "batch.folder: needs fsspec; pip install 'roundhouse-router[s3]'"
    with patch.dict("sys.modules", {"s3fs": None}), patch.dict("fsspec.registry._registry", clear=True):
        assert missing_extra(with_store) == (
            "batch.folder: Install s3fs to access S3; pip install 'roundhouse-router[s3]'"
        )


@pytest.mark.parametrize("name", [".", ".."])
def test_a_tenants_name_must_be_one_of_a_folder(name: str) -> None:
    tenant = f'[auth]\nmode = "header"\n[[tenant]]\nname = "{name}"\n'
    assert batch("", tenant) == BatchSettings()
    with pytest.raises(ConfigurationError, match="where each tenant has a folder of its name"):
        batch('folder = "files"', tenant)
