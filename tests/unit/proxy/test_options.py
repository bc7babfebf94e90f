from __future__ import annotations

import pytest

from pdctl.errors import UsageError
from pdctl.proxy.options import parse_options, parse_size, split_address

PAIR = ["--connector", "nixl", "--producer", "http://10.0.0.1:1", "--consumer", "d0=http://[::1]:2"]


def test_names_and_urls() -> None:
    options = parse_options(PAIR)
    assert [(one.name, one.url, one.host, one.port) for one in options.targets] == [
        ("producer-0", "http://10.0.0.1:1", "10.0.0.1", 1),
        ("d0", "http://[::1]:2", "::1", 2),
    ]
    assert (options.bind, options.port, options.max_body, options.retries) == ("127.0.0.1", 8000, 128 << 20, 1)


def test_kv_addresses() -> None:
    pair = [
        "--connector",
        "p2p_nccl",
        "--producer",
        "p=http://a:1,kv=10.0.0.1:21001",
        "--consumer",
        "http://b:2,kv=[::1]:3",
    ]
    assert [one.kv_address for one in parse_options(pair).targets] == ["10.0.0.1:21001", "[::1]:3"]


def test_registration_alone_is_dynamic() -> None:
    options = parse_options(["--connector", "p2p_nccl", "--registration", "0.0.0.0:30001"])
    assert options.registration == ("0.0.0.0", 30001)
    assert options.dynamic


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--connector", "nixl"],
        ["--connector", "ucx", *PAIR[2:]],
        ["--connector", "none", *PAIR[2:]],
        PAIR[:4],
        [*PAIR, "--producer", "http://10.0.0.1:1"],
        [*PAIR, "--producer", "d0=http://10.0.0.3:1"],
        [*PAIR, "--producer", "https://10.0.0.3:1"],
        [*PAIR, "--producer", "http://10.0.0.3:1/v1"],
        [*PAIR, "--producer", "http://10.0.0.3:1,rank=3"],
        [*PAIR, "--producer", "http://10.0.0.3:99999"],
        [*PAIR, "--port", "70000"],
        [*PAIR, "--max-body", "12 parsecs"],
        [*PAIR, "--retries", "-1"],
        [*PAIR, "--idle-timeout", "0"],
        [*PAIR, "--registration", "0.0.0.0:1"],
        ["--connector", "p2p_nccl", *PAIR[2:]],
        [*PAIR, "--api-key-env", "NOT_SET"],
    ],
)
def test_mistakes_are_usage_errors(argv: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        parse_options(argv, {})
    assert raised.value.exit_code == 2
    assert raised.value.fix


def test_key_comes_from_the_named_variable_and_is_not_shown() -> None:
    options = parse_options([*PAIR, "--api-key-env", "K"], {"K": "sk-1"})
    assert options.api_key == "sk-1"
    assert "sk-1" not in repr(options)


def test_sizes_and_addresses() -> None:
    assert [parse_size(text) for text in ("7", "1KiB", "2 MiB", "1gib")] == [7, 1024, 2 << 20, 1 << 30]
    assert split_address("[::1]:80") == ("::1", 80)
    for bad in ("a", "a:", ":1", "::1:80", "a:b", "a b:1", "a:0", "a/x:1"):
        with pytest.raises(ValueError):
            split_address(bad)
