"""What a process tells of itself beside its metrics: how its log is written, and where its traces go."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

LogFormat = Literal["human", "json"]


class LogConfig(BaseModel):
    """Of every process of a cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: LogFormat = "human"  # json: each line an object, for a log collector


class TracingConfig(BaseModel):
    """Where spans go, and of which requests there are any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str | None = None  # of a collector's OTLP over HTTP, as in http://127.0.0.1:4318; None: no traces
    sample_ratio: float = Field(1.0, ge=0, le=1)  # of the requests whose client has not decided it (traceparent)

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"{endpoint} is no URL: write http://HOST:PORT of a collector (OTLP over HTTP)")
        return endpoint
