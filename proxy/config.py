"""The proxy's settings, validated once, at the edge; every message names the field and the fix.

The same model reads the `proxy:` section of a cluster's YAML file; `to_arguments` hands it to a proxy process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from security.address import is_loopback


class ProxyConfig(BaseModel):
    """How one proxy listens, admits, retries and gives up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    grpc_port: int = Field(8001, ge=0, le=65535)  # 0: any free one, named in the log
    http_port: int = Field(8000, ge=0, le=65535)
    insecure: bool = False  # serve other machines without API keys, or without TLS
    keys_file: Path | None = None  # of API keys, as `pdserve keys` writes it; None: everybody is let in
    tls_cert: Path | None = None  # PEM, a chain or one certificate, for both ports; None: they are plain
    tls_key: Path | None = None
    open_metrics: bool = False  # /metrics and /prometheus/targets answer without a key, too

    max_queued_requests: int = Field(2048, ge=1)  # of one tenant; over it: 429; for batch ones already over 7/8 of it
    max_queued_tokens: int = Field(1 << 20, ge=1)  # likewise, of their prompts
    priority_ageing_s: float = Field(2.0, gt=0)  # waiting so long makes up for one level of priority
    dispatch_ahead: int = Field(2, ge=1)  # requests that may wait in one worker; batch ones do not count for others
    long_prompt_tokens: int = Field(2048, ge=1)  # a longer prompt is long
    max_long_prefills: int = Field(1, ge=1)  # long prompts that are sent to one worker and not computed yet
    kv_mode: Literal["p2p", "pooled"] = "p2p"  # of requests that do not say (x-kv-mode); pooled needs pool nodes
    routing: Literal["round_robin", "random", "least_loaded", "power_of_two", "session_affinity", "prefix_aware"] = (
        "prefix_aware"
    )
    load_weight: float = Field(0.2, ge=0)  # of a token that waits before a prompt; of one to compute: 1
    stream_tokens: float = Field(16.0, ge=0)  # what a request on a decode worker costs the next one there
    transfer_weight: float = Field(0.1, ge=0)  # of a token whose KV moves between workers of one node
    remote_transfer_weight: float = Field(0.3, ge=0)  # and of two nodes
    handoff_tokens: float = Field(48.0, ge=0)  # what agreeing on a hand-off costs
    local_prefill: Literal["by_cost", "if_needed"] = "by_cost"  # when decode workers compute prompts themselves
    local_prefill_weight: float = Field(4.0, ge=1)  # of a token computed there, beside the streams
    prefix_index_blocks: int = Field(262_144, ge=1)  # of the workers' caches that are known here; about 150 bytes each
    tool_call_format: Literal["auto", "hermes", "llama", "mistral"] = "auto"  # auto: by the model's chat template
    max_bodies_bytes: int = Field(256 << 20, ge=1024)  # of all that are being read or wait to be parsed
    max_body_bytes: int = Field(8 << 20, ge=1024)
    body_timeout_s: float = Field(30.0, gt=0)  # for a client to send its whole HTTP body
    header_timeout_s: float = Field(10.0, gt=0)  # for a client to send a request's HTTP head
    keep_alive_timeout_s: int = Field(5, ge=1)  # that an HTTP connection may be idle between two requests
    write_timeout_s: float = Field(30.0, gt=0)  # that a client may leave what it was sent unread
    max_connections: int = Field(16384, ge=1)  # of HTTP; over it: 503, and the connection closes
    max_grpc_streams: int = Field(4096, ge=1)  # calls at once in one gRPC connection; further ones wait in the client
    max_buffered_tokens: int = Field(8192, ge=1)  # that a slow client leaves unread, for one request

    slo_ttft_s: float | None = Field(None, gt=0)  # what /dashboard holds requests against that name no goal (x-slo-…)
    slo_tpot_s: float | None = Field(None, gt=0)
    request_timeout_s: float = Field(600.0, gt=0)  # the longest deadline a request may have
    max_handoff_attempts: int = Field(2, ge=1)  # with a prefill worker, then the decode worker computes the prompt
    max_attempts: int = Field(6, ge=1)  # of one request that fail; one whose worker left or was lost does not
    trace_requests: int = Field(4096, ge=0)  # the newest answers that are kept for `pdserve trace`; 0: none
    recovery_timeout_s: float = Field(30.0, gt=0)  # how long accepted requests wait for a decode worker to come back
    drain_timeout_s: float = Field(30.0, ge=0)  # how long SIGTERM waits for streams to finish

    @model_validator(mode="after")
    def _closed_unless_told(self) -> ProxyConfig:
        if self.insecure or is_loopback(self.host):
            return self
        if self.keys_file is None:
            raise ValueError(
                f"host {self.host} can be reached from other machines, and there are no API keys: set keys_file "
                "(`pdserve keys add` makes one), set insecure: true (--insecure) to serve everybody who can reach it, "
                "or use host 127.0.0.1"
            )
        if self.tls_cert is None:
            raise ValueError(
                f"host {self.host} can be reached from other machines, and without TLS they could read API keys: set "
                "tls_cert and tls_key (`pdserve certs` makes them), set insecure: true (--insecure) where something in "
                "front does TLS, or use host 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _files_can_be_found(self) -> ProxyConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: set both, or neither")
        for name in ("keys_file", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name} is {path}: write the whole path, since the proxy starts elsewhere")
        return self


def to_arguments(config: ProxyConfig) -> list[str]:
    """The options of `python -m proxy` that give the same settings."""
    arguments = []
    for name, value in config.model_dump(exclude_defaults=True).items():
        option = "--" + name.replace("_", "-")
        arguments += [option] if value is True else [option, str(value)]
    return arguments
