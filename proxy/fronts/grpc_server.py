"""The gRPC front: which services listen on its port, with health and reflection."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proxy.access.gate import Gate
from proxy.config import ProxyConfig
from proxy.fronts.grpc_gate import GrpcGate
from proxy.fronts.inference_servicer import InferenceServicer
from proxy.fronts.kserve_servicer import KserveServicer
from proxy.fronts.observe_servicer import ObserveServicer
from proxy.service import GenerationService
from rpc import inference_pb2, inference_pb2_grpc, kserve_pb2, kserve_pb2_grpc, observe_pb2_grpc
from security.connection import HANDSHAKE_OPTION

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
KSERVE = kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name


def build_server(service: GenerationService, gate: Gate, config: ProxyConfig) -> tuple[grpc.aio.Server, HealthReport]:
    options = [
        ("grpc.max_receive_message_length", config.max_body_bytes),
        ("grpc.max_concurrent_streams", config.max_grpc_streams),
        ("grpc.keepalive_time_ms", 20_000),  # a client that went away without a word is noticed, and its request ended
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # what clients may do in their turn
        HANDSHAKE_OPTION,
        ("grpc.so_reuseport", 0),  # a second proxy on the same port is an error, not a silent split of the clients
    ]
    server = grpc.aio.server(interceptors=[GrpcGate(gate)], options=options)
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(service), server)
    kserve_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(KserveServicer(service), server)
    observe_pb2_grpc.add_ObserveServicer_to_server(ObserveServicer(service, told_here_only=not gate.has_keys), server)
    report = HealthReport()
    health_pb2_grpc.add_HealthServicer_to_server(report.servicer, server)
    reflection.enable_server_reflection((INFERENCE, KSERVE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server, report


class HealthReport:
    """Maintains what grpc.health.v1 answers, for the server and for each service that generates."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def set_ready(self, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", INFERENCE, KSERVE):
            await self.servicer.set(name, status)
