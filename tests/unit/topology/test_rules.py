"""Rules between keys: hosts and their addresses, pins, ports, roles, the environment that pdctl owns."""

from __future__ import annotations

import pytest

from tests.unit.topology.loading import GOOD, load, only, place, problems

TWO = GOOD + "hosts:\n  - {name: a, address: 10.0.0.1}\n  - {name: b, address: 10.0.0.2}\n"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("localhost", "means each machine itself"),
        ("LOCALHOST", "means each machine itself"),
        ("127.0.0.1", "loopback address"),
        ("127.5.6.7", "loopback address"),
        ("127.1", "loopback address"),
        ("'::1'", "loopback address"),
        ("'[::1]'", "loopback address"),
        ("'::ffff:127.0.0.1'", "loopback address"),
        ("0.0.0.0", "means every address"),
        ("0", "means every address"),
        ("'::'", "means every address"),
    ],
)
@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl", "mooncake"])
def test_with_two_hosts_an_address_of_one_machine_only_is_refused(address: str, why: str, connector: str) -> None:
    problem = only(TWO.replace("10.0.0.2", address).replace("nixl", connector))
    assert place(problem) == ("hosts[1].address", 6, 15)
    assert "host b" in problem.what
    assert why in problem.what
    assert "no other host could connect" in problem.what
    assert "10.0.0.1" in problem.fix


def test_with_two_hosts_a_missing_address_names_the_host_and_says_why() -> None:
    problem = only(TWO.replace(", address: 10.0.0.1", ""))
    assert place(problem) == ("hosts[0].address", 5, 5)
    assert "host a" in problem.what
    assert "could not connect" in problem.what
    assert "address: 10.0.0.1" in problem.fix


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "10.0.0.1", "a.example"])
def test_with_one_host_loopback_is_fine(address: str) -> None:
    assert (
        load(GOOD + f"hosts:\n  - {{name: a, address: {address}}}\n".replace("::1", "'::1'")).topology.hosts[0].address
        == address
    )


def test_one_host_cannot_have_a_wildcard_address() -> None:
    problem = only(GOOD + "hosts:\n  - {name: a, address: 0.0.0.0}\n")
    assert problem.path == "hosts[0].address"
    assert "127.0.0.1" in problem.fix


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("10.0.0.300", "no IPv4 address"),
        ("10.0.0.0/24", "network"),
        ("http://a", "URL"),
        ("a:22", "port"),
        ("'a b'", "neither"),
        ("224.0.0.1", "one machine"),
        ("fe80::zz", "no IPv6 address"),
        ("ubuntu@a", "neither"),
    ],
)
def test_what_is_no_address_says_why(address: str, why: str) -> None:
    problem = only(TWO.replace("10.0.0.2", address))
    assert place(problem) == ("hosts[1].address", 6, 15)
    assert why in problem.what
    assert problem.fix


def test_a_host_with_ssh_needs_an_address() -> None:
    problem = only(GOOD + "hosts:\n  - {name: a, ssh: {host: a.example}}\n")
    assert place(problem) == ("hosts[0].address", 5, 5)
    assert "ssh" in problem.what


def test_two_hosts_cannot_share_an_address_or_a_name() -> None:
    problem = only(TWO.replace("10.0.0.2", "10.0.0.1"))
    assert place(problem) == ("hosts[1].address", 6, 15)
    assert "a and b" in problem.what
    twice = only(TWO.replace("name: b", "name: a"))
    assert place(twice) == ("hosts[1].name", 6, 6)
    assert "hosts[0]" in twice.what


@pytest.mark.parametrize("section", ["engine", "prefill", "decode", "aggregated"])
@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", "hosts[].address"),
        ("VLLM_HOST_IP", "hosts[].address"),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", "ports"),
        ("VLLM_MOONCAKE_BOOTSTRAP_PORT", "ports"),
        ("VLLM_PORT", "ports"),
        ("CUDA_VISIBLE_DEVICES", "hosts[].gpus"),
    ],
)
def test_the_environment_cannot_override_what_pdctl_owns(section: str, name: str, fix: str) -> None:
    problem = only(TWO + f"{section}:\n  env:\n    {name}: localhost\n")
    assert place(problem) == (f"{section}.env.{name}", 9, 5)
    assert fix in problem.fix
    assert "pdctl sets it" in problem.what


def test_nor_can_the_environment_of_a_host() -> None:
    problem = only(TWO.replace("10.0.0.2}", "10.0.0.2, env: {VLLM_NIXL_SIDE_CHANNEL_HOST: 10.0.0.2}}"))
    assert place(problem) == ("hosts[1].env.VLLM_NIXL_SIDE_CHANNEL_HOST", 6, 40)
    assert "hosts[].address" in problem.fix


def test_a_loopback_interface_leads_nowhere_with_two_hosts() -> None:
    found = problems(TWO.replace("10.0.0.2}", "10.0.0.2, interface: lo}") + "engine: {env: {NCCL_SOCKET_IFNAME: lo}}\n")
    assert [one.path for one in found] == ["hosts[1].interface", "engine.env.NCCL_SOCKET_IFNAME"]
    assert load(GOOD + "engine: {env: {NCCL_SOCKET_IFNAME: lo}}\n").topology.engine.env == {"NCCL_SOCKET_IFNAME": "lo"}


def test_other_variables_pass() -> None:
    env = load(TWO + "engine: {env: {NCCL_DEBUG: WARN, UCX_TLS: all, OMP_NUM_THREADS: 1}}\n").topology.engine.env
    assert env == {"NCCL_DEBUG": "WARN", "UCX_TLS": "all", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY"])
def test_secrets_do_not_stand_in_the_file(name: str) -> None:
    problem = only(GOOD + f"engine: {{env: {{{name}: hf_abc}}}}\n")
    assert problem.path == f"engine.env.{name}"
    assert "hf_abc" not in str(problem)
    assert problem.fix


@pytest.mark.parametrize(
    ("first", "second"),
    [("producer-0", "producer-0"), ("producer-0", "p0"), ("prefill-0", "p0"), ("d0", "decode-0"), ("consumer-0", "d0")],
)
def test_a_duplicate_pin_is_found_in_any_spelling(first: str, second: str) -> None:
    problem = only(TWO + f"placement:\n  - {{instance: {first}, host: a}}\n  - {{instance: {second}, host: b}}\n")
    assert place(problem) == ("placement[1]", 9, 5)
    assert "pinned twice" in problem.what
    assert "placement[0]" in problem.what


@pytest.mark.parametrize(
    "instance", ["producer-1", "p7", "decode-2", "aggregated-0", "nonsense", "producer-x", "producer-00"]
)
def test_a_pin_names_an_instance_of_the_layout(instance: str) -> None:
    problem = only(TWO + f"placement:\n  - {{instance: {instance}, host: a}}\n")
    assert place(problem) == ("placement[0].instance", 8, 6)
    assert instance in problem.what
    assert problem.fix == "instances: producer-0, consumer-0"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("placement:\n  - {instance: p0, host: z}\n", ("placement[0].host", 8, 20)),
        ("prefill: {hosts: [a, z]}\n", ("prefill.hosts[1]", 7, 22)),
        ("proxy: {host: z}\n", ("proxy.host", 7, 9)),
    ],
)
def test_hosts_must_be_known_by_name(text: str, where: tuple[str, int, int]) -> None:
    problem = only(TWO + text)
    assert place(problem) == where
    assert "'z'" in problem.what
    assert problem.fix == "hosts of this file: a, b"


def test_without_hosts_the_local_one_can_be_named() -> None:
    text = "placement:\n  - {instance: p0, host: local}\nproxy: {host: local}\ndecode: {hosts: [local]}\n"
    assert load(GOOD + text).topology.proxy.host == "local"


@pytest.mark.parametrize("gpus", ["[0, 1, 0]", "[0, 1, '0']", "[GPU-a, GPU-b, GPU-a]"])
def test_a_gpu_is_listed_once(gpus: str) -> None:
    problem = only(GOOD + f"hosts:\n  - name: a\n    gpus: {gpus}\n")
    assert (problem.path, problem.line) == ("hosts[0].gpus[2]", 6)
    pin = only(GOOD + f"placement:\n  - instance: p0\n    host: local\n    gpus: {gpus}\n")
    assert (pin.path, pin.line) == ("placement[0].gpus[2]", 7)


@pytest.mark.parametrize(
    ("ports", "path", "what"),
    [
        ("{base: 80}", "ports.base", "privileged"),
        ("{base: 32768}", "ports.base", "Linux hands out"),
        ("{base: 30769}", "ports.base", "Linux hands out"),
        ("{base: 20000, size: 12769}", "ports.size", "Linux hands out"),
    ],
)
def test_ports_lie_between_the_privileged_and_the_ephemeral(ports: str, path: str, what: str) -> None:
    problem = only(GOOD + f"ports: {ports}\n")
    assert (problem.path, problem.line) == (path, 4)
    assert what in problem.what
    assert "20000" in problem.fix


@pytest.mark.parametrize("ports", ["{base: 1024}", "{base: 30768}", "{base: 20000, size: 12768}"])
def test_ports_up_to_the_ephemeral_ones_are_fine(ports: str) -> None:
    assert load(GOOD + f"ports: {ports}\n").topology.ports.base >= 1024


def test_the_port_of_the_proxy_is_fixed_too() -> None:
    problem = only(GOOD + "proxy: {port: 40000}\n")
    assert place(problem) == ("proxy.port", 4, 9)
    assert "32768" in problem.what
    assert load(GOOD + "proxy: {port: 32767}\n").topology.proxy.port == 32767


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("model: m\n", ("layout", 1, 1), "nothing to run"),
        ("model: m\nlayout: 0P0D\n", ("layout", 2, 1), "nothing to run"),
        ("model: m\nlayout: 2P0D\nconnector: nixl\n", ("decode.replicas", 2, 1), "without decode"),
        ("model: m\nlayout: 0P2D\nconnector: nixl\n", ("prefill.replicas", 2, 1), "without prefill"),
        ("model: m\nprefill: {replicas: 1}\nconnector: nixl\n", ("decode.replicas", 1, 1), "without decode"),
        ("model: m\nlayout: 1P1D\n", ("connector", 1, 1), "connector"),
    ],
)
def test_the_roles_fit_together(text: str, where: tuple[str, int, int], what: str) -> None:
    problem = only(text)
    assert place(problem) == where
    assert what in problem.what
    assert problem.fix


def test_aggregated_alone_needs_no_connector_and_may_have_one() -> None:
    assert load("model: m\naggregated: {replicas: 2}\n").topology.connector is None
    assert load("model: m\naggregated: {replicas: 2}\nconnector: nixl\n").topology.connector is not None


def test_layout_and_replicas_must_agree() -> None:
    problem = only(GOOD + "prefill: {replicas: 2}\n")
    assert place(problem) == ("prefill.replicas", 4, 11)
    assert "1P1D" in problem.what
    assert load(GOOD + "prefill: {replicas: 1}\n").topology.prefill.replicas == 1


@pytest.mark.parametrize("value", ["sk-abcdef", "hf_abc.def", "'my key'", "1KEY", "''"])
def test_a_key_itself_is_refused_and_never_shown(value: str) -> None:
    problem = only(GOOD + f"proxy: {{api_key_env: {value}}}\n")
    assert place(problem) == ("proxy.api_key_env", 4, 9)
    assert value.strip("'") not in str(problem) or value == "''"
    assert "PDCTL_API_KEY" in problem.fix


def test_what_follows_from_a_wrong_value_is_not_said_as_well() -> None:
    text = GOOD + "hosts:\n  - {name: a, address: 10.0.0.1, gpus: x}\n  - {nam: b}\nprefill: {hosts: [b]}\n"
    assert [one.path for one in problems(text)] == ["hosts[0].gpus", "hosts[1].nam"]
