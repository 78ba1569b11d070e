"""A plan as text: each figure with the arithmetic that it comes from, then what to write into the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.plan.hardware import GIB, Hardware
from deploy.plan.model_size import ModelSize
from deploy.plan.plan import BUSY, FULL, Plan, Traffic

KIB = 1024


def lines(
    name: str, model: ModelSize, hardware: Hardware, traffic: Traffic, plan: Plan, block_size: int
) -> Iterator[str]:
    yield f"{name} on {hardware.name}, {hardware.dtype}: {traffic.requests_s:g} requests/s of "
    yield f"  {traffic.prompt_tokens} + {traffic.output_tokens} tokens, {traffic.cached_share:.0%} of a prompt cached"
    yield from _memory(model, hardware, traffic, plan, block_size)
    yield from _prefill(model, hardware, traffic, plan)
    yield from _decode(model, hardware, traffic, plan)
    yield from _settings(hardware, plan)


def _memory(model: ModelSize, hardware: Hardware, traffic: Traffic, plan: Plan, block_size: int) -> Iterator[str]:
    yield "Memory of one worker"
    yield f"  weights   {model.parameters:,} × {model.number_bytes} B = {model.weight_bytes / GIB:.2f} GiB"
    yield f"  KV        {model.kv_width:,} × {model.number_bytes} B = {model.kv_bytes / KIB:g} KiB a token"
    yield f"  block     {block_size} tokens × {model.kv_bytes / KIB:g} KiB = {plan.block_bytes / KIB:g} KiB"
    yield (
        f"  blocks    (0.9 × {hardware.memory_gib:g} GiB − {model.weight_bytes / GIB:.2f} GiB) / "
        f"{plan.block_bytes / KIB:g} KiB = {plan.num_blocks:,}, {plan.num_blocks * block_size:,} tokens"
    )
    yield f"  requests  {plan.most_by_memory:,} of {traffic.tokens} tokens have room"


def _prefill(model: ModelSize, hardware: Hardware, traffic: Traffic, plan: Plan) -> Iterator[str]:
    operations = model.prompt_operations(traffic.prompt_tokens, traffic.cached_tokens)
    yield "Prefill"
    yield (
        f"  a prompt  {operations / 1e12:.3g} TFLOP / ({hardware.compute_share:g} × {hardware.tflops:g} TFLOP/s) = "
        f"{_time(plan.prompt_s)}"
    )
    yield (
        f"  its KV    {traffic.prompt_tokens} × {model.kv_bytes / KIB:g} KiB / {hardware.link_gb_s:g} GB/s = "
        f"{_time(plan.transfer_s)}; the last chunk's {_time(plan.last_chunk_s)} come after the prompt"
    )
    yield (
        f"  workers   {traffic.requests_s:g}/s × {_time(plan.prompt_s)} = "
        f"{traffic.requests_s * plan.prompt_s:.3g} busy; at most {BUSY:.0%} each, within the TTFT: {plan.num_prefill}"
    )
    yield (
        f"  TTFT      {_time(plan.wait_s)} wait + {_time(plan.prompt_s)} + {_time(plan.last_chunk_s)} + "
        f"{_time(plan.step_s)} first step = {_time(plan.ttft_s)} in the mean (hoped for: {_time(traffic.ttft_s)})"
    )


def _decode(model: ModelSize, hardware: Hardware, traffic: Traffic, plan: Plan) -> Iterator[str]:
    read = model.step_bytes(plan.num_running, traffic.context)
    yield "Decode"
    yield (
        f"  a step    of {plan.num_running}: {read / GIB:.3g} GiB read at {hardware.memory_share:g} × "
        f"{hardware.memory_gb_s:g} GB/s, or computed if that takes longer = {_time(plan.step_s)} "
        f"(hoped for: {_time(traffic.tpot_s)})"
    )
    yield f"  at most   {plan.most_by_tpot} requests by TPOT, {plan.most_by_memory:,} by memory: {plan.max_num_seqs}"
    yield (
        f"  workers   {traffic.requests_s * traffic.output_tokens:g} tokens/s in all, {plan.num_running} / "
        f"{_time(plan.step_s)} = {plan.num_running / plan.step_s:.3g} of one, "
        f"at most {FULL:.0%} full: {plan.num_decode}"
    )


def _settings(hardware: Hardware, plan: Plan) -> Iterator[str]:
    yield f"P : D = {plan.num_prefill} : {plan.num_decode}"
    yield f"  pdserve up --prefill {plan.num_prefill} --decode {plan.num_decode} \\"
    yield f"    --set cluster.engine.device={hardware.device} --set cluster.engine.num_blocks={plan.num_blocks} \\"
    yield f"    --set cluster.pools.decode.engine.scheduling.max_num_seqs={plan.max_num_seqs}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
