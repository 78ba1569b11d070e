"""`python -m proxy`: one proxy process, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from proxy.access.key_store import KeyStore
from proxy.config import ProxyConfig
from proxy.core import Core
from proxy.model import ServedModel
from proxy.server import ProxyServer
from security.cluster_tls import ClusterTls
from security.server_certificate import server_credentials
from telemetry.config import LogFormat, TracingConfig
from telemetry.log_format import log_to_stderr
from telemetry.tracer import open_tracer

logger = logging.getLogger("proxy")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proxy", description=__doc__, allow_abbrev=False)
    parser.add_argument("--controller", required=True, metavar="HOST:PORT", help="the controller's gRPC address")
    parser.add_argument("--model-dir", required=True, type=Path, help="Hugging Face folder with tokenizer.json")
    parser.add_argument("--model-name", required=True, help="the name that clients use")
    parser.add_argument(
        "--cluster-tls", type=Path, metavar="DIR", help="the cluster's certificates, for what is inside"
    )
    parser.add_argument("--operator-key-file", type=Path, metavar="FILE", help="one more API key, which may do all")
    parser.add_argument("--log-format", default="human", choices=get_args(LogFormat))
    parser.add_argument("--trace-endpoint", metavar="URL", help="of a collector's OTLP over HTTP; default: no traces")
    parser.add_argument("--trace-sample-ratio", default=1.0, metavar="SHARE", help="of the requests; default: 1")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    for name, field in ProxyConfig.model_fields.items():
        option = "--" + name.replace("_", "-")
        if field.annotation is bool:
            parser.add_argument(option, action="store_true", default=argparse.SUPPRESS)
        else:
            parser.add_argument(option, default=argparse.SUPPRESS, help=f"default: {field.default}")
    return parser


def main() -> int:
    options = vars(build_parser().parse_args())
    given = {name: options.pop(name) for name in list(options) if name in ProxyConfig.model_fields}
    log_to_stderr(options["log_format"], options["log_level"])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        config = ProxyConfig.model_validate(given)
        model = ServedModel.load(options["model_dir"], options["model_name"], config.tool_call_format)
        cluster_tls = ClusterTls.read(options["cluster_tls"])
        tls = server_credentials(config.tls_cert, config.tls_key)
        tracing = TracingConfig(endpoint=options["trace_endpoint"], sample_ratio=options["trace_sample_ratio"])
        keys = KeyStore.open(config.keys_file, options["operator_key_file"])
    except ValidationError as error:
        for item in error.errors():
            name = ".".join(str(part) for part in item["loc"])
            print(f"proxy: {name + ': ' if name else ''}{item['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"proxy: {error}", file=sys.stderr)
        return 2
    _raise_file_limit()
    tracer = open_tracer(tracing, "pdserve-proxy", f"proxy-{config.http_port}")

    def build() -> ProxyServer:
        core = Core(config, model, options["controller"], tls=cluster_tls.channel, tracer=tracer)
        return ProxyServer(config, core, keys, tls)

    try:
        return asyncio.run(_serve(build, model.name, config.drain_timeout_s))
    finally:
        if tracer is not None:
            tracer.close()


async def _serve(build: Callable[[], ProxyServer], model_name: str, drain_timeout_s: float) -> int:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, told.set)
    server = build()
    try:
        addresses = await server.start()
    except OSError as error:
        print(f"proxy: {error}", file=sys.stderr)
        return 1
    logger.info("serving %s: grpc=%s http=%s", model_name, addresses.grpc, addresses.http)
    failed = asyncio.create_task(server.wait_failed())
    stopping = asyncio.create_task(told.wait())
    await asyncio.wait([failed, stopping], return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        logger.error("%s", failed.result())
        return 1
    failed.cancel()
    logger.info("stopping: %g s for what runs", drain_timeout_s)
    await server.stop()
    return 0


def _raise_file_limit() -> None:
    """A client is a file descriptor; many systems allow 1024 unless asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
