"""Both fronts with API keys on: who gets in, as whom, and what those are told who do not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rpc import inference_pb2, inference_pb2_grpc, observe_pb2, observe_pb2_grpc, worker_pb2
from security.certificates import make_certificates
from security.pinned import pinned_channel_tls, pinned_context
from tests.unit.proxy.access.conftest import Guarded, MakeGuarded
from tests.unit.proxy.access.keys import make_key
from tests.unit.proxy.conftest import MakeCluster, http_client
from tests.unit.proxy.fake_worker import PATIENCE_S

BODY = {"prompt": "x", "max_tokens": 1}


@pytest.fixture
async def http(guarded: Guarded) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(f"http://{guarded.cluster.addresses.http}") as client:
        yield client


@pytest.fixture
async def channel(guarded: Guarded) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(guarded.cluster.addresses.grpc) as channel:
        yield channel


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


async def salt_of(guarded: Guarded, http: httpx.AsyncClient, headers: dict[str, str], **fields: str) -> str:
    """What keeps the cached prefixes of a request like this from others'."""
    asking = asyncio.create_task(http.post("/v1/completions", json=BODY | fields, headers=headers))
    prefill, decode = await guarded.cluster.starts()
    guarded.cluster.decode.say(decode, b"a", finish="length")
    assert (await asking).status_code == 200
    return str(prefill.request.cache_salt)


class TestHttp:
    @pytest.mark.parametrize(
        ("authorization", "code"),
        [
            (None, "missing_api_key"),
            ("", "missing_api_key"),
            ("Bearer", "invalid_api_key"),
            ("Bearer sk-1", "invalid_api_key"),
            ("Basic eDp5", "invalid_api_key"),
            pytest.param("Bearer " + make_key("eve")[0], "invalid_api_key", id="of nobody"),
            ("Bearer " + "x" * 10_000, "invalid_api_key"),
        ],
    )
    async def test_without_a_right_key_it_is_401_and_nothing_runs(
        self, guarded: Guarded, http: httpx.AsyncClient, authorization: str | None, code: str
    ) -> None:
        headers = {} if authorization is None else {"authorization": authorization}
        for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/docs"), ("GET", "/nothing")):
            refused = await http.request(method, path, headers=headers, json=BODY if method == "POST" else None)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, code)
            assert (refused.headers["www-authenticate"], refused.headers["connection"]) == ("Bearer", "close")
        assert guarded.cluster.prefill.starts.empty()
        assert guarded.cluster.metric("pdserve_rejected_total", reason=code) == 4

    @pytest.mark.parametrize(("name", "why"), [("revoked", "was revoked"), ("expired", "has expired")])
    async def test_a_key_that_holds_no_more_is_told_so(
        self, guarded: Guarded, http: httpx.AsyncClient, name: str, why: str
    ) -> None:
        refused = await http.get("/v1/models", headers=bearer(guarded.keys[name]))
        assert refused.status_code == 401
        assert why in refused.json()["error"]["message"]

    async def test_a_right_key_is_served_as_its_tenant(self, guarded: Guarded, http: httpx.AsyncClient) -> None:
        alice = bearer(guarded.keys["alice"])
        assert await salt_of(guarded, http, alice) == "alice "
        assert await salt_of(guarded, http, alice | {"x-tenant": "alice"}, cache_salt="s") == "alice s"
        assert await salt_of(guarded, http, {"authorization": f"bearer  {guarded.keys['alice']}"}) == "alice "

    async def test_no_key_reaches_another_tenants_cache(self, guarded: Guarded, http: httpx.AsyncClient) -> None:
        gateway = bearer(guarded.keys["gateway"])
        victims = await salt_of(guarded, http, gateway | {"x-tenant": "victim"})
        refused = await http.post(
            "/v1/completions", json=BODY, headers=bearer(guarded.keys["alice"]) | {"x-tenant": "victim"}
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_not_allowed")
        tries = [await salt_of(guarded, http, bearer(guarded.keys["alice"]), cache_salt=s) for s in ("victim", victims)]
        assert victims not in tries
        assert await salt_of(guarded, http, gateway) == "gateway "

    async def test_more_than_one_key_or_tenant_is_refused(self, guarded: Guarded, http: httpx.AsyncClient) -> None:
        key = ("authorization", f"Bearer {guarded.keys['gateway']}")
        for more in (key, ("x-tenant", "a")):
            refused = await http.get("/v1/models", headers=[key, more, ("x-tenant", "b")])
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, more[0])

    async def test_health_and_readiness_need_no_key(self, http: httpx.AsyncClient) -> None:
        assert [(await http.get(path)).status_code for path in ("/health", "/ready")] == [200, 200]

    async def test_metrics_need_a_key_that_may_observe(self, guarded: Guarded, http: httpx.AsyncClient) -> None:
        for path in ("/metrics", "/prometheus/targets"):
            answers = [await http.get(path, headers=bearer(guarded.keys[name])) for name in ("alice", "monitor")]
            assert [(await http.get(path)).status_code, *(a.status_code for a in answers)] == [401, 403, 200]
        refused = await http.post("/v1/completions", json=BODY, headers=bearer(guarded.keys["monitor"]))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")

    async def test_open_metrics_need_none(self, make_guarded: MakeGuarded) -> None:
        guarded = await make_guarded(open_metrics=True)
        async with http_client(f"http://{guarded.cluster.addresses.http}") as http:
            assert (await http.get("/metrics")).status_code == 200
            assert (await http.get("/v1/models")).status_code == 401

    async def test_the_official_client_raises_its_own_errors(self, guarded: Guarded) -> None:
        base_url = f"http://{guarded.cluster.addresses.http}/v1"
        for name, error in (("revoked", openai.AuthenticationError), ("monitor", openai.PermissionDeniedError)):
            options: dict[str, Any] = {"max_retries": 0, "http_client": http_client(base_url)}
            client = openai.AsyncOpenAI(base_url=base_url, api_key=guarded.keys[name], **options)
            async with client:
                with pytest.raises(error):
                    await client.models.list()

    async def test_no_key_is_logged_right_or_wrong(
        self, guarded: Guarded, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        wrong, right = make_key("eve")[0], guarded.keys["alice"]
        for key in (wrong, right, guarded.keys["revoked"], guarded.keys["monitor"]):
            await http.get("/v1/models", headers=bearer(key))
        await salt_of(guarded, http, bearer(right))
        assert "refused: unauthenticated: wrong API key" in caplog.text
        for key in (wrong, *guarded.keys.values()):
            assert key.rpartition("-")[2] not in caplog.text
            assert key[-20:] not in caplog.text


class TestGrpc:
    async def code_of(self, call: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        return refused.value.code()

    async def test_without_a_right_key_it_is_unauthenticated(self, guarded: Guarded, channel: grpc.aio.Channel) -> None:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", guarded.keys["alice"]),)):
            models = stub.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata, timeout=PATIENCE_S)
            assert await self.code_of(models) is grpc.StatusCode.UNAUTHENTICATED
            call = stub.Generate(inference_pb2.GenerateRequest(text="x"), metadata=metadata, timeout=PATIENCE_S)
            assert await self.code_of(call.read()) is grpc.StatusCode.UNAUTHENTICATED
        unknown: Any = channel.unary_unary("/nobody.Knows/It")
        assert await self.code_of(unknown(b"", timeout=PATIENCE_S)) is grpc.StatusCode.UNAUTHENTICATED

    async def test_another_tenant_is_denied(self, guarded: Guarded, channel: grpc.aio.Channel) -> None:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        metadata = (*bearer(guarded.keys["alice"]).items(), ("x-tenant", "victim"))
        call = stub.Generate(inference_pb2.GenerateRequest(text="x"), metadata=metadata, timeout=PATIENCE_S)
        assert await self.code_of(call.read()) is grpc.StatusCode.PERMISSION_DENIED

    async def test_a_right_key_is_served_as_its_tenant(self, guarded: Guarded, channel: grpc.aio.Channel) -> None:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        metadata = tuple(bearer(guarded.keys["alice"]).items())
        call = stub.Generate(inference_pb2.GenerateRequest(text="x"), metadata=metadata, timeout=PATIENCE_S)
        prefill, decode = await guarded.cluster.starts()
        assert isinstance(prefill, worker_pb2.StartPrefill)
        assert prefill.request.cache_salt == "alice "
        guarded.cluster.decode.say(decode, b"a", finish="length")
        assert "started" in [event.WhichOneof("event") async for event in call]

    async def test_health_needs_no_key_and_reflection_any(self, guarded: Guarded, channel: grpc.aio.Channel) -> None:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        refused = stub.ServerReflectionInfo(iter(asked), timeout=PATIENCE_S)
        assert await self.code_of(refused.read()) is grpc.StatusCode.UNAUTHENTICATED
        metadata = tuple(bearer(guarded.keys["monitor"]).items())
        told = await stub.ServerReflectionInfo(iter(asked), timeout=PATIENCE_S, metadata=metadata).read()
        assert "pdserve.v1.Inference" in [service.name for service in told.list_services_response.service]

    async def test_records_of_requests_are_for_whoever_may_observe(
        self, guarded: Guarded, channel: grpc.aio.Channel
    ) -> None:
        stub: Any = observe_pb2_grpc.ObserveStub(channel)
        codes = []
        for name in ("alice", "revoked"):
            metadata = tuple(bearer(guarded.keys[name]).items())
            codes.append(
                await self.code_of(stub.Read(observe_pb2.ReadRequest(), metadata=metadata, timeout=PATIENCE_S).read())
            )
        assert codes == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED]
        metadata = tuple(bearer(guarded.keys["monitor"]).items())
        records = await stub.Read(observe_pb2.ReadRequest(), metadata=metadata, timeout=PATIENCE_S).read()
        assert records.source.name == "proxy"


async def test_both_ports_speak_tls_and_nothing_else(
    make_cluster: MakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_certificates(tmp_path / "tls", ["proxy.example"], days=1)
    certificate, key = tmp_path / "tls" / "server.crt", tmp_path / "tls" / "server.key"
    cluster = await make_cluster(fronts=True, tls_cert=certificate, tls_key=key)
    url, trusting = f"https://{cluster.addresses.http}", pinned_context(certificate)
    async with httpx.AsyncClient(base_url=url, verify=trusting, timeout=PATIENCE_S, trust_env=False) as http:
        assert (await http.get("/v1/models")).status_code == 200
    async with http_client(f"http://{cluster.addresses.http}") as plain:
        with pytest.raises(httpx.TransportError):
            await plain.get("/health")
    tls = pinned_channel_tls(certificate)
    named = [("grpc.ssl_target_name_override", tls.server_name)]
    async with grpc.aio.secure_channel(cluster.addresses.grpc, tls.credentials, options=named) as secure:
        stub: Any = inference_pb2_grpc.InferenceStub(secure)
        assert (await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=PATIENCE_S)).models
    async with grpc.aio.insecure_channel(cluster.addresses.grpc) as insecure:
        stub = inference_pb2_grpc.InferenceStub(insecure)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=PATIENCE_S)
