"""The file of API keys: JSON that `pdserve keys` writes and proxies read, nobody else's to read or write.

It is replaced as a whole, so that whoever reads it sees all of a change or nothing.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from proxy.access.api_key import ApiKey
from proxy.access.caller import TenantLimits

ALLOWED_MODE = 0o740  # a group may read it, as a mounted secret's does


class KeyFileError(ValueError):
    """The file cannot be used; the message names it, what is wrong and the fix."""


class KeyFile(BaseModel):
    """All keys, and what the tenants that have limits may have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    keys: tuple[ApiKey, ...] = ()
    tenants: dict[str, TenantLimits] = Field(default_factory=dict)

    @field_validator("keys")
    @classmethod
    def _differ(cls, keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
        for field in ("name", "id"):
            value, count = next(iter(Counter(getattr(key, field) for key in keys).most_common(1)), ("", 0))
            if count > 1:
                raise ValueError(f"{count} keys have the {field} {value}: remove all but one")
        return keys

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Raises KeyFileError."""
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read()
        except OSError as error:
            raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
        if mode & ~ALLOWED_MODE:
            raise KeyFileError(f"{path} has the mode {mode:04o}, so others could read or change it: chmod 600 {path}")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise KeyFileError(f"{path}: {_first_fault(error)}") from None  # the rest may quote what is in the file

    def write(self, path: Path) -> None:
        """Readable by its owner only. Raises KeyFileError."""
        try:
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # of mode 0600
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(self.model_dump_json(indent=2, exclude_defaults=True) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise KeyFileError(f"{path} cannot be written: {error.strerror}") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    field = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    return f"{field}: {message}" if field else message
