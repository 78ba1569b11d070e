"""The one configuration file: `cluster`, `proxy` and `prometheus`, read, laid over with the command line, validated.

Every message names the file, the field, the value and the fix.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.spec import ClusterSpec
from deploy.errors import CommandError
from deploy.ray_config import RayConfig
from proxy.config import ProxyConfig
from security.address import is_loopback

WILDCARDS = ("", "0.0.0.0", "::")
DEFAULT_FILE = Path(__file__).parent / "local.yaml"


class ConfigError(CommandError):
    """The configuration cannot be used; the message has one line for each thing that is wrong."""


class PrometheusConfig(BaseModel):
    """Of the Prometheus that `--with-prometheus` starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int = Field(9090, ge=1, le=65535)


class DeployConfig(BaseModel):
    """A whole configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: ClusterSpec
    proxy: ProxyConfig = Field(default_factory=ProxyConfig)
    ray: RayConfig = Field(default_factory=RayConfig)
    prometheus: PrometheusConfig = Field(default_factory=PrometheusConfig)

    @model_validator(mode="after")
    def _ports_differ(self) -> DeployConfig:
        ports = {
            "cluster.controller_port": self.cluster.controller_port,
            "proxy.grpc_port": self.proxy.grpc_port,
            "proxy.http_port": self.proxy.http_port,
        }
        seen: dict[int, str] = {}
        for name, port in ports.items():
            if port and port in seen:
                raise ValueError(f"{name} and {seen[port]} are both {port}: give one of them another port")
            seen[port] = name
        return self

    @model_validator(mode="after")
    def _pooled_with_a_pool(self) -> DeployConfig:
        if self.proxy.kv_mode == "pooled" and not self.cluster.kv_pool.nodes:
            raise ValueError(
                "proxy.kv_mode is pooled and cluster.kv_pool.nodes is 0: set nodes to 1 or more, or kv_mode to p2p"
            )
        return self

    @model_validator(mode="after")
    def _closed_unless_told(self) -> DeployConfig:
        if self.cluster.host in WILDCARDS:
            raise ValueError(
                f"cluster.host {self.cluster.host} is no address that workers could give to each other: "
                "set this machine's own address"
            )
        if not self.proxy.insecure and self.cluster.tls is None and not is_loopback(self.cluster.host):
            raise ValueError(
                f"cluster.host {self.cluster.host} can be reached from other machines, and there are no certificates: "
                "set cluster.tls (`pdserve certs` makes them), set proxy.insecure: true (--insecure) to let everybody "
                "who can reach it control the cluster, or use host 127.0.0.1"
            )
        return self


def load(file: Path, overrides: Mapping[str, object], options: Mapping[str, str] | None = None) -> DeployConfig:
    """`overrides` has dotted names, as in `cluster.pools.decode.replicas`; `options` has the command line's option for
    those that were not given with `--set`. Raises ConfigError."""
    options = {name: (options or {}).get(name, "--set") for name in overrides}
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold a mapping with `cluster:` in it, not {type(content).__name__}")
    for name, value in overrides.items():
        try:
            _set(content, name, value)
        except ConfigError as error:
            raise ConfigError(f"{options[name]}: {error}") from error
    try:
        return _in_workers_order(_on_loopback(DeployConfig.model_validate(content)))
    except ValidationError as error:
        lines = (f"{_origin(field, line, options) or file}: {line}" for field, line in _explained(error))
        raise ConfigError("\n".join(lines)) from error


def _on_loopback(config: DeployConfig) -> DeployConfig:
    """NIXL's data plane has no authentication: where all else listens on loopback, so does it."""
    transfer = config.cluster.kv_transfer
    if transfer.ucx_net_devices is not None or not is_loopback(config.cluster.host):
        return config
    cluster = config.cluster.model_copy(update={"kv_transfer": transfer.model_copy(update={"ucx_net_devices": "lo"})})
    return config.model_copy(update={"cluster": cluster})


def _in_workers_order(config: DeployConfig) -> DeployConfig:
    """What the proxy is not told of the order of requests is as `cluster.engine.scheduling` has it."""
    scheduling = config.cluster.engine.scheduling
    same = {
        "priority_ageing_s": scheduling.priority_ageing_s,
        "long_prompt_tokens": scheduling.long_prefill_token_threshold,
    }
    update = {name: value for name, value in same.items() if name not in config.proxy.model_fields_set}
    return config.model_copy(update={"proxy": config.proxy.model_copy(update=update)})


def parse_setting(text: str) -> tuple[str, object]:
    """`NAME=VALUE`, the value as YAML. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text}: write it as NAME=VALUE, as in proxy.http_port=8080")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text}: the value is not YAML") from error


def _set(content: dict[str, Any], name: str, value: object) -> None:
    *path, last = name.split(".")
    section = content
    for depth, part in enumerate(path):
        below = section.setdefault(part, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{name} cannot be set: {'.'.join(path[: depth + 1])} is not a section")
        section = below
    section[last] = value


def _origin(field: str, line: str, options: Mapping[str, str]) -> str | None:
    """The option that gave what is wrong; None when it was the file."""
    for name, option in options.items():
        if f"{field}.".startswith(f"{name}."):
            return option
        is_section = not field or name.startswith(f"{field}.")  # a fault between settings names them in its sentence
        if is_section and re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", line):
            return option
    return None


def _explained(error: ValidationError) -> list[tuple[str, str]]:
    """Field and line of each fault; one that a pool only inherited is told once."""
    lines: dict[tuple[str, str], tuple[str, str]] = {}
    for fault in error.errors():
        field = ".".join(str(part) for part in fault["loc"])
        key = (str(fault["loc"][-1:]), f"{fault['msg']} {fault['input']!r}"[:200])
        line = _line(field, fault["type"], fault["msg"], fault["input"])
        if key not in lines or len(line) < len(lines[key][1]):
            lines[key] = (field, line)
    return list(lines.values())


def _line(field: str, kind: str, message: str, value: object) -> str:
    if kind == "extra_forbidden":
        return f"{field} is not a setting{_suggestion(field)}"
    if kind == "missing":
        return f"{field} is missing: set it"
    if kind == "value_error":  # a sentence of ours, which names its own fields
        sentence = message.removeprefix("Value error, ")
        return f"{field}: {sentence}" if field else sentence
    if kind == "model_type":
        return f"{field} is {value!r}: it should be a section, with settings below it"
    return f"{field} is {value!r}: {message.replace('Input should', 'it should', 1)}"


def _suggestion(field: str) -> str:
    *path, name = field.split(".")
    known = list(_fields_of(path))
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f": did you mean {close[0]}?"
    return f"; the settings there are {', '.join(known)}" if known else ""


def _fields_of(path: Iterable[str]) -> Iterable[str]:
    model: object = DeployConfig
    for part in path:
        if part.isdecimal():  # of a list, whose items are alike
            model = next(iter(get_args(model)), None)
            continue
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or part not in model.model_fields:
            return []
        model = model.model_fields[part].annotation
    return model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else []
