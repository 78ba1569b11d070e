"""The tensors of a Hugging Face folder, from one safetensors file or from shards listed in an index.

Every tensor is asked for by name and shape, and none may be left over: a checkpoint with more than the engine computes
is refused instead of half used.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model_config import UnsupportedModelError

IGNORED_ENDINGS = ("rotary_emb.inv_freq",)  # a constant that old checkpoints carry


class Checkpoint:
    """Maintains the open files and the names not read yet. Files are mapped, and copied where the dtype differs."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        self.folder = folder
        self.device = device
        self.dtype = dtype
        self._files: dict[str, safe_open] = {}
        for file in _weight_files(folder):
            try:
                opened = safe_open(file, framework="pt")
            except (OSError, SafetensorError) as error:
                raise UnsupportedModelError(f"{file} cannot be read: {error}") from error
            self._files.update(dict.fromkeys(opened.keys(), opened))  # type: ignore[no-untyped-call]
        self._unread = set(self._files)

    def tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self._files:
            raise UnsupportedModelError(f"{self.folder}: the weights hold no tensor {name}")
        self._unread.discard(name)
        tensor: Tensor = self._files[name].get_tensor(name)  # type: ignore[no-untyped-call]
        if tuple(tensor.shape) != shape:
            raise UnsupportedModelError(
                f"{self.folder}: {name} has the shape {list(tensor.shape)}, config.json asks for {list(shape)}"
            )
        return tensor.to(device=self.device, dtype=self.dtype)

    def skip(self, name: str) -> None:
        """Says that `name`, if it is there, is not needed."""
        self._unread.discard(name)

    def finish(self) -> None:
        """Raises `UnsupportedModelError` when tensors were left unread."""
        left = sorted(name for name in self._unread if not name.endswith(IGNORED_ENDINGS))
        if left:
            names = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            raise UnsupportedModelError(f"{self.folder}: tensors that this architecture does not use: {names}")


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UnsupportedModelError(f"{index} cannot be read: {error}") from error
    return [folder / name for name in sorted(names)]
