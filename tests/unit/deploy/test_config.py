"""The configuration file: what is laid over what, and what a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cluster.pool_node_spec import PoolNodeSpec
from cluster.roles import ROLE_NAMES
from deploy.cluster_ports import with_ports
from deploy.config import DEFAULT_FILE, ConfigError, load, parse_setting


def complaint(overrides: dict[str, object], file: Path = DEFAULT_FILE) -> str:
    with pytest.raises(ConfigError) as error:
        load(file, overrides)
    return str(error.value)


def test_the_default_file_is_one_prefill_and_one_decode_worker_with_three_quarters_of_a_gib_each() -> None:
    config = load(DEFAULT_FILE, {})
    assert config.cluster.desired == {"prefill": 1, "decode": 1, "mixed": 0, "pool": 0}
    engine = config.cluster.pools.decode.engine
    assert engine.threads == 1
    assert 0.65 < engine.num_blocks * 720 / 1024**2 < 0.8
    assert config.cluster.model_name == "smollm2-135m-instruct"
    assert not config.proxy.insecure


def test_no_default_port_is_one_that_the_system_gives_to_outgoing_connections() -> None:
    config = load(DEFAULT_FILE, {})
    ports = (config.cluster.controller_port, config.proxy.grpc_port, config.proxy.http_port, config.prometheus.port)
    assert all(port < 32768 for port in ports)


def test_the_command_line_is_laid_over_the_file() -> None:
    config = load(DEFAULT_FILE, {"cluster.pools.decode.replicas": 3, "cluster.model": "/models/qwen/"})
    assert config.cluster.desired["decode"] == 3
    assert config.cluster.desired["prefill"] == 1
    assert config.cluster.model_name == "qwen"


def test_a_pool_lays_its_settings_over_the_cluster_s() -> None:
    config = load(DEFAULT_FILE, {"cluster.engine.threads": 2, "cluster.pools.decode.engine.num_blocks": 99})
    pools = config.cluster.pools
    assert (pools.decode.engine.num_blocks, pools.decode.engine.threads) == (99, 2)
    assert (pools.prefill.engine.num_blocks, pools.prefill.engine.threads) == (1024, 2)
    assert pools.mixed.engine.threads == 2


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cluster.engine.num_block", 3, "cluster.engine.num_block is not a setting: did you mean num_blocks?"),
        ("cluster.pools.decoder", {}, "cluster.pools.decoder is not a setting: did you mean decode?"),
        ("proxy.zzz", 1, "proxy.zzz is not a setting; the settings there are host,"),
        ("cluster.engine.threads", "lots", "cluster.engine.threads is 'lots': it should be a valid integer"),
        (
            "cluster.pools.decode.replicas",
            -1,
            "cluster.pools.decode.replicas is -1: it should be greater than or equal",
        ),
        ("proxy.local_prefill", "never", "proxy.local_prefill is 'never': it should be 'by_cost' or 'if_needed'"),
        (
            "proxy.kv_mode",
            "pooled",
            "proxy.kv_mode is pooled and cluster.kv_pool.nodes is 0: set nodes to 1 or more",
        ),
        ("cluster.engine.device", "gpu", "cluster.engine.device: 'gpu' is no device: set cpu, cuda, or cuda:N"),
        ("cluster.engine.tensor_parallel_size", 2, "tensor_parallel_size is not supported yet: set it to 1"),
        ("cluster.pools", 3, "cluster.pools is 3: it should be a section"),
        ("cluster.pools.decode.replicas", 0, "set pools.decode.replicas or pools.mixed.replicas"),
        ("cluster.engine.scheduling.prefill_chunk_size", 4096, "(4096) is larger than max_num_batched_tokens"),
        ("cluster.pools.decode.engine.block_size", 8, "the two could not share KV; set them equal"),
        ("proxy.http_port", 8001, "proxy.http_port and proxy.grpc_port are both 8001"),
        ("proxy.host", "0.0.0.0", "proxy: host 0.0.0.0 can be reached from other machines"),
        ("cluster.host", "192.168.1.5", "cluster.host 192.168.1.5 can be reached from other machines"),
        ("cluster.host", "0.0.0.0", "cluster.host 0.0.0.0 is no address that workers could give to each other"),
        ("cluster.model.name", "x", "cluster.model.name cannot be set: cluster.model is not a section"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_the_fix(name: str, value: object, words: str) -> None:
    """Field report D39 is one of them: tensor parallelism."""
    assert words in complaint({name: value})


def test_a_fault_in_the_shared_engine_settings_is_told_once() -> None:
    assert len(complaint({"cluster.engine.threads": 0}).splitlines()) == 1


def test_every_fault_has_a_line_that_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("cluster: {engine: {threads: 0}, pools: {decode: {replicas: 1}}}\nproxy: {http_port: 99999}\n")
    lines = complaint({"cluster.model": "x"}, file).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{file}: ") for line in lines)


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        ({"proxy.http_port": 99999}, "--set: proxy.http_port is 99999"),
        ({"proxy.http_port": 8001}, "--set: proxy.http_port and proxy.grpc_port are both"),
        ({"proxy.host": "0.0.0.0"}, "--set: proxy: host 0.0.0.0"),
        ({"cluster.model.name": "x"}, "--set: cluster.model.name cannot be set"),
        ({"cluster.pools.decode.replicas": 0}, "--decode: cluster: pools has no worker"),
        ({"cluster.model": 3, "cluster.host": "127.0.0.1"}, "--model: cluster.model is 3"),
    ],
)
def test_a_fault_of_the_command_line_names_the_option(overrides: dict[str, object], start: str) -> None:
    options = {"cluster.pools.decode.replicas": "--decode", "cluster.model": "--model"}
    with pytest.raises(ConfigError) as error:
        load(DEFAULT_FILE, overrides, options)
    assert str(error.value).startswith(start)


def test_insecure_opens_both_hosts() -> None:
    config = load(DEFAULT_FILE, {"proxy.host": "0.0.0.0", "cluster.host": "192.168.1.5", "proxy.insecure": True})
    assert config.proxy.insecure


def test_a_file_that_is_missing_or_no_mapping_or_no_yaml_is_told(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in complaint({}, tmp_path / "none.yaml")
    file = tmp_path / "wrong.yaml"
    file.write_text("- 1\n")
    assert "must hold a mapping" in complaint({}, file)
    file.write_text("cluster: [\n")
    assert "is not YAML" in complaint({}, file)
    file.write_text("proxy: {}\n")
    assert "cluster is missing: set it" in complaint({}, file)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("proxy.http_port=8080", ("proxy.http_port", 8080)),
        ("proxy.insecure=true", ("proxy.insecure", True)),
        ("cluster.model=a=b", ("cluster.model", "a=b")),
        ("cluster.served_name=", ("cluster.served_name", None)),
    ],
)
def test_a_setting_on_the_command_line_is_yaml(text: str, setting: tuple[str, object]) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["proxy.http_port", "=1", "a=[", ""])
def test_a_setting_without_a_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_setting(text)


def test_every_setting_in_the_default_file_has_a_reader() -> None:
    content = yaml.safe_load(DEFAULT_FILE.read_text())
    assert set(content) == {"cluster", "proxy", "prometheus"}


def test_the_default_file_sets_nothing_but_the_number_of_workers_otherwise_than_the_code(tmp_path: Path) -> None:
    shortest = tmp_path / "shortest.yaml"
    shortest.write_text("cluster: {pools: {prefill: {replicas: 1}, decode: {replicas: 1}}}")
    assert load(DEFAULT_FILE, {}) == load(shortest, {})


def test_a_port_of_0_becomes_a_free_one_and_another_stays() -> None:
    config = load(DEFAULT_FILE, {"cluster.controller_port": 0, "proxy.http_port": 0})
    chosen = with_ports(config)
    assert 0 not in (chosen.cluster.controller_port, chosen.proxy.http_port)
    assert chosen.cluster.controller_port != chosen.proxy.http_port
    assert chosen.proxy.grpc_port == 8001


def test_the_data_plane_listens_on_loopback_where_all_else_does() -> None:
    assert load(DEFAULT_FILE, {}).cluster.kv_transfer.ucx_net_devices == "lo"
    told = {"cluster.kv_transfer.ucx_net_devices": "eth0"}
    assert load(DEFAULT_FILE, told).cluster.kv_transfer.ucx_net_devices == "eth0"
    open_to_others = {"cluster.host": "10.1.2.3", "proxy.insecure": True}
    assert load(DEFAULT_FILE, open_to_others).cluster.kv_transfer.ucx_net_devices is None


def test_the_proxy_orders_requests_as_the_workers_do_unless_it_is_told_otherwise() -> None:
    scheduling = "cluster.engine.scheduling"
    theirs = {f"{scheduling}.priority_ageing_s": 5, f"{scheduling}.long_prefill_token_threshold": 400}
    proxy = load(DEFAULT_FILE, theirs).proxy
    assert (proxy.priority_ageing_s, proxy.long_prompt_tokens) == (5, 400)
    proxy = load(DEFAULT_FILE, {**theirs, "proxy.priority_ageing_s": 1}).proxy
    assert (proxy.priority_ageing_s, proxy.long_prompt_tokens) == (1, 400)


@pytest.mark.parametrize("file", sorted((DEFAULT_FILE.parent / "examples").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_example_is_a_valid_configuration(file: Path) -> None:
    config = load(file, {})
    for role in ROLE_NAMES:
        engine = config.cluster.pools.of(role).engine
        if config.cluster.desired[role]:
            engine.scheduling.check_context(engine.max_model_len or 8192)


def test_a_pool_may_change_one_scheduling_setting_and_keeps_the_cluster_s_others() -> None:
    scheduling = "cluster.engine.scheduling"
    pool = "cluster.pools.prefill.engine.scheduling"
    config = load(DEFAULT_FILE, {f"{scheduling}.max_num_seqs": 7, f"{pool}.prefill_chunk_size": 64})
    prefill = config.cluster.pools.prefill.engine.scheduling
    decode = config.cluster.pools.decode.engine.scheduling
    assert (prefill.max_num_seqs, prefill.prefill_chunk_size) == (7, 64)
    assert (decode.max_num_seqs, decode.prefill_chunk_size) == (7, 256)


def test_a_pool_of_kv_is_whole_and_its_disk_tier_needs_a_place() -> None:
    config = load(DEFAULT_FILE, {"cluster.kv_pool.nodes": 2, "cluster.kv_pool.ram_gib": 0.25})
    node = config.cluster.process("pool-0", "pool", "i", "/model")
    assert isinstance(node, PoolNodeSpec)
    assert node.pool.ram_bytes == 1 << 28
    assert node.engine == config.cluster.pools.prefill.engine
    assert config.cluster.desired["pool"] == 2
    assert "disk_dir is not set" in complaint({"cluster.kv_pool.disk_gib": 1})
    assert "write the whole path" in complaint({"cluster.kv_pool.disk_gib": 1, "cluster.kv_pool.disk_dir": "cache"})


GROUPS = "cluster.pools.decode.groups"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {GROUPS: [{"name": "a", "most": 1}], "cluster.pools.decode.replicas": 2},
            "cluster.pools.decode: replicas is 2, and its groups have room for 1: raise most of a group",
        ),
        ({GROUPS: [{"name": "a", "most": 1}, {"name": "a"}]}, "decode: groups has a more than once: give each"),
        ({GROUPS: [{"name": "a"}, {"name": "b"}]}, "a has no limit, so that b would never get a worker: set most of a"),
        ({GROUPS: [{"name": "A_1"}]}, "groups.0.name: 'A_1' is no name of a group: write up to 32 of a-z, 0-9 and -"),
        ({GROUPS: [{"name": ""}]}, "groups.0.name: '' is no name of a group"),
        ({GROUPS: [{"most": 1}]}, "groups.0.name is missing: set it"),
        ({GROUPS: [{"name": "a", "most": 0}]}, "groups.0.most is 0: it should be greater than or equal to 1"),
        ({GROUPS: [{"name": "a", "mots": 1}]}, "groups.0.mots is not a setting: did you mean most?"),
        ({GROUPS: [{"name": "a", "engine": {"threads": 0}}]}, "groups.0.engine.threads is 0: it should be greater"),
        ({GROUPS: ["a"]}, "groups.0 is 'a': it should be a section"),
        ({GROUPS: 3}, "cluster.pools.decode.groups is 3: it should be a valid tuple"),
        (
            {GROUPS: [{"name": "a", "engine": {"block_size": 8}}]},
            "engine.block_size of a (8) is not the pool's (16): its workers could not share KV",
        ),
        (
            {GROUPS: [{"name": "a", "most": 3}], "cluster.autoscale.enabled": True},
            "autoscale.decode.max is 4, and pools.decode.groups have room for 3: lower it to that",
        ),
    ],
)
def test_groups_that_cannot_be_filled_or_scaled_are_refused(overrides: dict[str, object], words: str) -> None:
    assert words in complaint(overrides)


def test_a_group_lays_its_settings_over_the_pool_s_which_stay_those_after_a_round_trip() -> None:
    group = {"name": "a", "engine": {"scheduling": {"max_num_seqs": 7}}, "placement": {"labels": {"rack": 7}}}
    pool = {"replicas": 1, "engine": {"num_blocks": 99}, "placement": {"affinity": "pair"}, "groups": [group]}
    cluster = load(DEFAULT_FILE, {"cluster.engine.threads": 2, "cluster.pools.decode": pool}).cluster
    engine, placement = cluster.pools.decode.engine_of("a"), cluster.pools.decode.placement_of("a")
    assert (engine.threads, engine.num_blocks, engine.scheduling.max_num_seqs) == (2, 99, 7)
    assert engine.scheduling.prefill_chunk_size == 256
    assert (placement.labels, placement.affinity) == ({"rack": "7"}, "pair")
    assert type(cluster).model_validate_json(cluster.model_dump_json()) == cluster


def test_the_first_workers_go_to_the_groups_in_their_order() -> None:
    groups = [{"name": "a", "most": 1, "engine": {"threads": 3}}, {"name": "b", "most": 4}, {"name": "c"}]
    pool = load(DEFAULT_FILE, {GROUPS: groups, "cluster.pools.decode.replicas": 3}).cluster.pools.decode
    assert [(share.group, share.num_workers, share.engine.threads) for share in pool.shares] == [
        ("a", 1, 3),
        ("b", 2, 1),
        ("c", 0, 1),
    ]
