"""The native kernel and the torch fallback compute the same attention, in place, whatever the shape."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import native_library
from engine.attention import AttentionMetadata, torch_attention, write_kv
from engine.attention_cpu import SOURCE, CpuAttention, choose_attention
from engine.batch import Work
from engine.kv_cache import KVCache, KVLayout
from engine.native_library import NativeLibraryError, load_native_library
from tests.unit.engine_model.tiny_models import make_request


@pytest.fixture(scope="module")
def native_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


def make_cache(num_kv_heads: int, block_size: int, head_dim: int, num_blocks: int = 64) -> KVCache:
    cache = KVCache(KVLayout(3, num_kv_heads, block_size, head_dim, "float32"), num_blocks)
    cache.tensor.normal_(generator=torch.Generator().manual_seed(5))
    return cache


def make_works(lengths: list[tuple[int, int]], block_size: int, num_blocks: int = 64) -> list[Work]:
    """One work for each (tokens in the cache, of which queries), in blocks that lie anywhere and overlap nowhere."""
    blocks = random.Random(3).sample(range(num_blocks), num_blocks)
    works = []
    for length, num_queries in lengths:
        num_needed = -(-length // block_size)
        request = make_request([0] * length, [blocks.pop() for _ in range(num_needed)])
        works.append(Work(request, length - num_queries, num_queries, True))
    return works


def plain_attention(query: Tensor, cache: KVCache, layer: int, works: list[Work]) -> Tensor:
    """Softmax by hand, in float64, one token and head at a time."""
    block_size = cache.layout.block_size
    group = query.shape[1] // cache.layout.num_kv_heads
    rows = [(work, i) for work in works for i in range(work.start, work.end)]
    output = torch.empty_like(query, dtype=torch.float64)
    for row, (work, position) in enumerate(rows):
        entries = [cache.tensor[work.request.blocks[i // block_size], layer, :, :, i % block_size].double()
                   for i in range(position + 1)]  # fmt: skip
        keys, values = torch.stack([e[0] for e in entries]), torch.stack([e[1] for e in entries])
        for head in range(query.shape[1]):
            scores = keys[:, head // group] @ query[row, head].double() / query.shape[2] ** 0.5
            output[row, head] = scores.softmax(0) @ values[:, head // group]
    return output.float()


SHAPES = [  # query heads, kv heads, head_dim, block_size
    (9, 3, 64, 16),
    (8, 8, 16, 4),
    (8, 1, 128, 16),
    (14, 2, 64, 32),
    (6, 2, 80, 7),
    (4, 1, 256, 16),
]
LENGTHS = {
    "one token": [(1, 1)],
    "decodes of many lengths": [(1, 1), (15, 1), (16, 1), (17, 1), (64, 1), (65, 1)],
    "whole prompts": [(5, 5), (70, 70)],
    "chunks beside decodes": [(100, 33), (40, 1), (90, 2), (20, 3)],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_attentions_are_softmax_attention(
    shape: tuple[int, int, int, int], lengths: list[tuple[int, int]], native_dir: Path
) -> None:
    num_heads, num_kv_heads, head_dim, block_size = shape
    cache = make_cache(num_kv_heads, block_size, head_dim)
    works = make_works(lengths, block_size)
    metadata = AttentionMetadata.of(works, block_size)
    query = torch.randn(metadata.query_starts[-1], num_heads, head_dim, generator=torch.Generator().manual_seed(1))
    expected = plain_attention(query, cache, 1, works)
    before = cache.tensor.clone()
    native = CpuAttention(load_native_library(SOURCE, native_dir))

    torch.testing.assert_close(native(query, cache.tensor, 1, metadata), expected, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(torch_attention(query, cache.tensor, 1, metadata), expected, atol=2e-6, rtol=2e-5)
    assert torch.equal(cache.tensor, before)


def test_scores_far_apart_do_not_overflow(native_dir: Path) -> None:
    cache = make_cache(1, 16, 64)
    cache.tensor *= 40
    works = make_works([(150, 1), (150, 20)], 16)
    metadata = AttentionMetadata.of(works, 16)
    query = 40 * torch.randn(21, 3, 64, generator=torch.Generator().manual_seed(1))
    native = CpuAttention(load_native_library(SOURCE, native_dir))
    torch.testing.assert_close(
        native(query, cache.tensor, 2, metadata),
        torch_attention(query, cache.tensor, 2, metadata),
        atol=1e-3,
        rtol=1e-4,
    )


def test_a_query_that_is_a_strided_view_is_read_right(native_dir: Path) -> None:
    cache = make_cache(3, 16, 64)
    metadata = AttentionMetadata.of(make_works([(40, 7)], 16), 16)
    heads = torch.randn(7, 12, 64)
    native = CpuAttention(load_native_library(SOURCE, native_dir))
    torch.testing.assert_close(
        native(heads[:, :9], cache.tensor, 0, metadata), native(heads[:, :9].clone(), cache.tensor, 0, metadata)
    )


def test_more_threads_give_the_same_numbers(native_dir: Path) -> None:
    cache = make_cache(3, 16, 64)
    metadata = AttentionMetadata.of(make_works([(200, 100), (33, 1)], 16), 16)
    query = torch.randn(101, 9, 64)
    library = load_native_library(SOURCE, native_dir)
    one, three = CpuAttention(library), CpuAttention(library, num_threads=3)
    assert torch.equal(one(query, cache.tensor, 0, metadata), three(query, cache.tensor, 0, metadata))


def test_written_kv_lies_in_its_block_slot_and_layer_and_nowhere_else() -> None:
    cache = make_cache(2, 4, 8, num_blocks=8)
    before = cache.tensor.clone()
    request = make_request([0] * 7, [6, 1])
    metadata = AttentionMetadata.of([Work(request, 3, 4, False)], 4)
    key, value = torch.randn(4, 2, 8), torch.randn(4, 2, 8)

    write_kv(key, value, cache.tensor, 1, metadata)

    for row, (block, slot) in enumerate([(6, 3), (1, 0), (1, 1), (1, 2)]):
        assert torch.equal(cache.tensor[block, 1, 0, :, slot], key[row])
        assert torch.equal(cache.tensor[block, 1, 1, :, slot], value[row])
        before[block, 1, :, :, slot] = cache.tensor[block, 1, :, :, slot]
    assert torch.equal(cache.tensor, before)


def test_a_machine_without_a_compiler_falls_back_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native_library, "COMPILERS", ("no-such-compiler",))
    with caplog.at_level(logging.INFO):
        attention = choose_attention(KVLayout(1, 1, 16, 64, "float32"), 4, "cpu", 1, tmp_path)
    assert attention is torch_attention
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no-such-compiler" in caplog.text


@pytest.mark.parametrize(
    ("layout", "device"),
    [
        (KVLayout(1, 1, 16, 24, "float32"), "cpu"),
        (KVLayout(1, 1, 16, 512, "float32"), "cpu"),
        (KVLayout(1, 1, 16, 64, "bfloat16"), "cpu"),
        (KVLayout(1, 1, 16, 64, "float32"), "cuda"),
    ],
)
def test_what_the_kernel_does_not_take_goes_to_torch(layout: KVLayout, device: str, tmp_path: Path) -> None:
    assert choose_attention(layout, 4, device, 1, tmp_path) is torch_attention
    assert not list(tmp_path.iterdir())


def test_a_source_is_compiled_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    source, cache_dir = tmp_path / "seven.c", tmp_path / "made"
    source.write_text("int seven(void) { return 7; }")
    assert load_native_library(source, cache_dir).seven() == 7
    made = next(cache_dir.iterdir()).stat().st_mtime_ns
    load_native_library(source, cache_dir)
    assert [file.stat().st_mtime_ns for file in cache_dir.iterdir()] == [made]
    source.write_text("int seven(void) { return 8; }")
    assert load_native_library(source, cache_dir).seven() == 8
    assert len(list(cache_dir.iterdir())) == 2


def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_words(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int f(void) { return missing; }")
    with pytest.raises(NativeLibraryError, match="missing"):
        load_native_library(source, tmp_path / "made")


def test_a_cache_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeLibraryError, match="file"):
        load_native_library(SOURCE, tmp_path / "file" / "native")
