from __future__ import annotations

import pytest
from pydantic import ValidationError

from proxy.__main__ import build_parser
from proxy.config import ProxyConfig, to_arguments
from security.address import join_host_port


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_a_host_that_others_reach_is_refused_unless_insecure(host: str) -> None:
    with pytest.raises(ValidationError, match=r"API keys.*--insecure"):
        ProxyConfig(host=host)
    assert ProxyConfig(host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_flag(host: str) -> None:
    assert not ProxyConfig(host=host).insecure


@pytest.mark.parametrize(
    "wrong", [{"grpc_port": 70000}, {"routing": "best"}, {"max_queued_requests": 0}, {"no_such_field": 1}]
)
def test_a_wrong_setting_names_its_field(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ProxyConfig.model_validate(wrong)


def test_the_arguments_of_a_config_give_the_same_config() -> None:
    config = ProxyConfig(host="::", insecure=True, http_port=1, routing="round_robin", request_timeout_s=1.5)
    required = ["--controller", "c:1", "--model-dir", "d", "--model-name", "n"]
    options = vars(build_parser().parse_args([*required, *to_arguments(config)]))
    given = {name: value for name, value in options.items() if name in ProxyConfig.model_fields}
    assert ProxyConfig.model_validate(given) == config


def test_ipv6_addresses_keep_their_brackets() -> None:
    assert join_host_port("::1", 80) == "[::1]:80"
    assert join_host_port("127.0.0.1", 80) == "127.0.0.1:80"
