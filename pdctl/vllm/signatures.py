"""What the lines of an engine's log mean: one row a signature, most telling row first.

`said` is the text as it stands in vLLM's sources; tools/vllm_facts looks it up in every release and writes the releases that
have it into releases.json (table `messages`). A row without `said` is a message of Python, torch, NCCL, ZMQ, the hub or the kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Weight = Literal["cause", "weak", "harm"]
"""`cause`: the engine ends of it. `weak`: so too, but a line that says less than any `cause`. `harm`: the engine lives on and
requests fail, slow down or come out wrong."""


@dataclass(frozen=True)
class Signature:
    """One row."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    """One sentence without a full stop; `\\1` stands for a group of the pattern."""
    fix: str
    example: str
    """A line as an engine prints it, without the prefix."""
    said: str = ""
    weight: Weight = "cause"
    hangs: bool = False
    """After this line an engine that starts goes on waiting for ever, alive and silent."""


def _row(
    name: str, pattern: str, cause: str, fix: str, example: str, said: str = "", weight: Weight = "cause", hangs: bool = False
) -> Signature:  # fmt: skip
    return Signature(name, re.compile(pattern), cause, fix, example, said, weight, hangs)


_ARGUMENTS = (
    _row(
        "unknown-argument",
        r"error: unrecognized arguments: (.+)",
        r"this vLLM does not know the argument \1",
        "remove it from `args`, or use a vLLM version that has it",
        "api_server.py: error: unrecognized arguments: --swap-space 4",
    ),
    _row(
        "kv-config-no-json",
        r"error: argument --kv-transfer-config/?\S*: Value .* cannot be converted to",
        "the value of --kv-transfer-config is no JSON",
        "let pdctl write it, or quote it for the shell",
        "api_server.py: error: argument --kv-transfer-config: Value {kv_connector:x} cannot be converted to <function loads>.",
    ),
    _row(
        "kv-config-refused",
        r"error: argument --kv-transfer-config: (?:\d+ validation errors? for KVTransferConfig)?(.*)",
        r"this vLLM refuses the KV transfer config: \1",
        "check `connector.extra`, and that `engine.version` is what the host runs",
        "api_server.py: error: argument --kv-transfer-config: 1 validation error for KVTransferConfig",
    ),
    _row(
        "wrong-argument",
        r"error: argument ([-\w/]+): (.+)",
        r"the argument \1 is wrong: \2",
        "correct it in `args`",
        "api_server.py: error: argument --max-model-len: invalid human_readable_int value: 'many'",
    ),
    _row(
        "no-role",
        r"Please specify kv_(?:disagg_)?role when kv_connector",
        "the KV transfer config names no kv_role",
        "set kv_role to kv_producer (prefill) or kv_consumer (decode)",
        "  Value error, Please specify kv_role when kv_connector is set, supported roles are ('kv_producer', 'kv_both', 'kv_consumer')",
        "Please specify kv_role when kv_connector ",
    ),
    _row(
        "unknown-role",
        r"Unsupported kv_role: (\S+?)\.? Supported",
        r"there is no kv_role \1",
        "set kv_role to kv_producer (prefill) or kv_consumer (decode)",
        "  Value error, Unsupported kv_role: producer. Supported roles are ('kv_producer', 'kv_both', 'kv_consumer')",
        "Unsupported kv_role: ",
    ),
    _row(
        "unknown-variable",
        r"ValueError: Unknown vLLM environment variable detected: (\S+)",
        r"this vLLM does not know the variable \1 and was told to refuse such",
        "remove it from `env`, or leave out --fail-on-environ-validation",
        "ValueError: Unknown vLLM environment variable detected: VLLM_PD_ROLE",
        "Unknown vLLM environment variable detected: {env}",
    ),
)

_CONNECTORS = (
    _row(
        "connector-gone",
        r"Unsupported connector type: (\w+)",
        r"this vLLM has no connector \1",
        "use one that this version has (`pdctl connectors`); P2pNcclConnector ended with 0.23",
        "ValueError: Unsupported connector type: P2pNcclConnector",
        "Unsupported connector type: ",
    ),
    _row(
        "nixl-too-old",
        r"NIXL >= (\S+) is required, but (\S+) is installed",
        r"\2 is installed, this vLLM needs nixl \1 or newer",
        "pip install that version of nixl in the engine's environment",
        "RuntimeError: NIXL >= 1.5.0 is required, but nixl==1.1.0 is installed",
        "is required, but {dist}=={installed} ",
    ),
    _row(
        "transfer-package-missing",
        r"(?:RuntimeError: )(NIXL|Mooncake|MoRIIO) is not available",
        r"the package of \1 is not installed in the engine's environment",
        "pip install it there (nixl, mooncake-transfer-engine, mori)",
        "RuntimeError: NIXL is not available",
        "NIXL is not available",
    ),
    _row(
        "mooncake-install",
        r"Please install mooncake by following the instructions",
        "the package of Mooncake is not installed in the engine's environment",
        "pip install mooncake-transfer-engine there",
        "ImportError: Please install mooncake by following the instructions at https://github.com/kvcache-ai/Mooncake",
        "Please install mooncake by following the instructions at ",
    ),
    _row(
        "mooncake-engine",
        r"Mooncake Transfer Engine initialization failed",
        "Mooncake's transfer engine could not start on this host",
        "look at the lines before it; without RDMA devices set connector.extra.mooncake_protocol: tcp",
        "RuntimeError: Mooncake Transfer Engine initialization failed.",
        "Mooncake Transfer Engine initialization failed.",
    ),
    _row(
        "mooncake-memory",
        r"Mooncake batch memory registration failed",
        "Mooncake could not register the KV cache with the network device",
        "raise `ulimit -l`, load nvidia-peermem, or set connector.extra.mooncake_protocol: tcp",
        "RuntimeError: Mooncake batch memory registration failed.",
        "Mooncake batch memory registration failed.",
    ),
    _row(
        "mooncake-registered-twice",
        r"Engine ID mismatch for dp_rank=(\d+)|is already registered at",
        "two engines use one Mooncake bootstrap server",
        "give each producer its own VLLM_MOONCAKE_BOOTSTRAP_PORT; pdctl does",
        "Error registering {} with bootstrap server: 400: Engine ID mismatch for dp_rank=0: expected a, got b",
        "Engine ID mismatch for dp_rank=",
    ),
    _row(
        "p2p-port-zero",
        r"ValueError: Port cannot be 0",
        "P2pNccl was given kv_port 0",
        "let pdctl choose kv_port",
        "ValueError: Port cannot be 0",
        "Port cannot be 0",
    ),
    _row(
        "p2p-http-port",
        r"kv_connector_extra_config\.http_port is required",
        "P2pNccl was given a proxy but no http_port",
        "set http_port to the engine's own --port as a string; pdctl does",
        "ValueError: kv_connector_extra_config.http_port is required. Example: {}",
        "kv_connector_extra_config.http_port is required. ",
    ),
    _row(
        "p2p-proxy-port-number",
        r"can only concatenate str \(not \"int\"\) to str",
        "proxy_port was given as a number",
        'write it as a string ("30001"), or let pdctl set it',
        'TypeError: can only concatenate str (not "int") to str',
    ),
    _row(
        "p2p-unproxied",
        r"Request id \S* ?does not contain hostname and port",
        "a request reached the engine that did not come through the proxy; P2pNccl ends on that",
        "send requests to the proxy only, and restart this engine and its peers",
        "ValueError: Request id cmpl-7f0c-0 does not contain hostname and port",
        " does not contain hostname and port",
    ),
    _row(
        "p2p-tp-differs",
        r"only symmetric TP is supported",
        "P2pNccl needs the same tp and pp for prefill and decode",
        "set one tp for both roles, or use nixl",
        "NotImplementedError: Currently, only symmetric TP is supported. Asymmetric TP, PP, and others will be supported in future PRs.",
        "only symmetric TP is supported.",
    ),
    _row(
        "p2p-pool-full",
        r"ValueError: Insufficient memory$",
        "the pinned pool of P2pNccl is full, and its listener has ended; the engine hangs from here on",
        "raise connector.extra.mem_pool_size_gb, and restart both roles",
        "ValueError: Insufficient memory",
        "Insufficient memory",
    ),
    _row(
        "push-block-size",
        r"NixlPushConnector requires identical P/D block sizes",
        "prefill and decode have different block sizes, which NixlPush does not take",
        "set one block-size in engine.args",
        "RuntimeError: NixlPushConnector requires identical P/D block sizes. Kernel block size and kernel blocks per logical block",
        "NixlPushConnector requires identical P/D block sizes",
    ),
    _row(
        "nixl-consumer-pp",
        r"NixlPushConnector consumer \(decode\) does not support|does not support pipeline_parallel_size",
        "this NIXL connector takes no pipeline parallelism in this role",
        "set pp: 1",
        "NotImplementedError: NixlPushConnector consumer (decode) does not support pipeline_parallel_size > 1.",
        "NixlPushConnector consumer (decode) does not support ",
    ),
    _row(
        "mooncake-pp",
        r"Mooncake Transfer Engine does not support pipeline parallelism",
        "Mooncake takes no pipeline parallelism in this release",
        "set pp: 1",
        "ValueError: Mooncake Transfer Engine does not support pipeline parallelism yet.",
        "Mooncake Transfer Engine does not support pipeline parallelism yet.",
    ),
    _row(
        "kv-buffer-device",
        r"RuntimeError: (\w+) with (\w+) kv_buffer is not supported",
        r"NIXL cannot use a KV buffer on \2 with a \1 engine",
        "set connector.extra kv_buffer_device to cpu or cuda",
        "RuntimeError: cpu with cuda kv_buffer is not supported.",
        "{self.device_type} with {self.kv_buffer_device} kv_buffer ",
    ),
    _row(
        "expandable-segments",
        r"KV connector (\w+) is incompatible with PYTORCH_CUDA_ALLOC_CONF",
        r"\1 does not work with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "unset it",
        "ValueError: KV connector NixlConnector is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless",
        "incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ",
    ),
    _row(
        "no-hma",
        r"Connector (\w+) does not support HMA",
        r"\1 does not support the hybrid KV cache",
        "set disable-hybrid-kv-cache-manager in engine.args",
        "ValueError: Connector P2pNcclConnector does not support HMA but HMA is enabled. Please set `--disable-hybrid-kv-cache-manager`.",
        " does not support HMA but ",
    ),
    _row(
        "multi-layouts",
        r"KV cache layout mismatch: found",
        "the connectors inside MultiConnector want different KV cache layouts",
        "combine others, or set VLLM_KV_CACHE_LAYOUT",
        "ValueError: KV cache layout mismatch: found 2 different layouts (HND, NHD). All connectors must use the same layout.",
        "KV cache layout mismatch: ",
    ),
    _row(
        "nixl-own-engine",
        r"Cannot register local engine (\S+) as remote",
        r"a consumer was sent to itself, or two engines share the engine_id \1",
        "set no engine_id, and give each host its own side-channel address; pdctl does",
        "AssertionError: Cannot register local engine 5c1e as remote. Please check your configuration.",
        "Cannot register local engine ",
        "harm",
    ),
)

_MEMORY = (
    _row(
        "sampler-warm-up",
        r"CUDA out of memory occurred when warming up sampler with (\d+) dummy requests",
        r"out of GPU memory while warming up \1 requests",
        "lower max-num-seqs or gpu-memory-utilization",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering",
        "CUDA out of memory occurred when warming up sampler with ",
    ),
    _row(
        "weights-too-big",
        r"Failed to load model - not enough GPU memory",
        "the weights don't fit the GPU",
        "use a larger tp, or a quantised model",
        "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for weights",
        "Failed to load model - not enough GPU memory. ",
    ),
    _row(
        "cuda-out-of-memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|HIP out of memory|CUDA error: out of memory",
        "the GPU is out of memory",
        "use a larger tp, a lower max-model-len, or look who else is on the GPU",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB",
    ),
    _row(
        "gpu-in-use",
        r"Free memory on device (\S+) \(([^)]*)\) on startup is less than desired GPU memory utilization",
        r"another process uses the GPU: free on \1 is \2, less than gpu-memory-utilization asks for",
        "stop the other process, or lower gpu-memory-utilization",
        "ValueError: Free memory on device cuda:0 (10.5/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB)",
        "is less than desired GPU memory utilization ",
    ),
    _row(
        "memory-profiling",
        r"Error in memory profiling\. Initial free memory",
        "another process freed GPU memory while this one measured it",
        "start the engines of one GPU one after another, or set kv-cache-memory-bytes",
        "AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current free memory 75.3 GiB.",
        "Error in memory profiling. ",
    ),
    _row(
        "no-kv-memory",
        r"No available memory for the cache blocks|not enough GPU memory available to serve even a single token",
        "no memory is left for the KV cache after the weights",
        "raise gpu-memory-utilization, or use a larger tp (on CPU: VLLM_CPU_KVCACHE_SPACE)",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        "No available memory for the cache blocks.",
    ),
    _row(
        "kv-too-small",
        r"To serve at least one request with the models?'?s? max seq len \((\d+)\).*estimated maximum model length is (\d+)",
        r"the KV cache holds \2 tokens, max-model-len asks for \1",
        "lower max-model-len to that",
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than "
        "the available KV cache memory (2.1 GiB). Based on the available memory, the estimated maximum model length is 17200.",
        "To serve at least one request with the model",
    ),
    _row(
        "kv-too-small-unknown",
        r"To serve at least one request with the models?'?s? max seq len \((\d+)\)",
        r"the KV cache is too small for one request of max-model-len \1",
        "lower max-model-len or raise gpu-memory-utilization",
        "ValueError: To serve at least one request with the models's max seq len (32768), (4.0 GiB KV cache is needed, which is larger than",
        "To serve at least one request with the model",
    ),
    _row(
        "cpu-memory",
        r"Available memory on node (\S+) \(([^)]*)\) on",
        r"the CPU engine wants more memory than NUMA node \1 has free (\2)",
        "lower VLLM_CPU_KVCACHE_SPACE",
        "ValueError: Available memory on node 0 (3.1/8.0 GiB) on kv cache allocation is less than requested memory for kv (4.0 GiB).",
        "Available memory on node ",
    ),
    _row(
        "cpu-memory-own",
        r"The worker already uses (\S+) GiB \(model weights and runtime\)",
        r"the CPU engine's weights take \1 GiB and leave nothing for the KV cache",
        "set VLLM_CPU_KVCACHE_SPACE, or raise gpu-memory-utilization (on CPU: the share of main memory)",
        "ValueError: The worker already uses 5.2 GiB (model weights and runtime), more than the 4.0 GiB of CPU memory reserved for it",
        "The worker already uses ",
    ),
    _row(
        "mlock",
        r"(?:ibv_reg_mr|mlock|register).*Cannot allocate memory|RLIMIT_MEMLOCK",
        "the limit on locked memory is too low for RDMA",
        "raise it with `ulimit -l unlimited` (or LimitMEMLOCK in systemd)",
        "ib_md.c:295  UCX  ERROR ibv_reg_mr(address=0x7f, length=4194304) failed: Cannot allocate memory",
    ),
    _row(
        "shared-memory",
        r"Bus error|unable to open shared memory|/dev/shm.*No space",
        "shared memory is too small",
        "enlarge /dev/shm (docker: --shm-size or --ipc=host)",
        "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: No space left on device (28)",
    ),
    _row(
        "disk-full",
        r"No space left on device",
        "the disk is full",
        "make room",
        "OSError: [Errno 28] No space left on device",
    ),
    _row(
        "killed",
        r"Worker proc (\S+) died unexpectedly \(exit code: -9\)",
        r"\1 was killed with SIGKILL, as the kernel does when memory runs out",
        "look at dmesg; use less memory",
        "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
        "died unexpectedly (exit code: ",
    ),
)

_PLACES = (
    _row(
        "nixl-port-taken",
        r"ZMQError: Address already in use \(addr='tcp://([^']+)'\)|Address already in use \(addr='tcp://([^']+)'\)",
        r"the KV port \1\2 is taken by another process",
        "stop it, or choose another `ports.base`",
        "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5600')",
    ),
    _row(
        "address-not-here",
        r"Cannot assign requested address(?: \(addr='tcp://([^']+)'\))?",
        r"the address \1 is not this host's",
        "correct the host's `address`",
        "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.9.0.1:5600')",
    ),
    _row(
        "port-taken",
        r"\[Errno 98\]|EADDRINUSE|address already in use|Address already in use",
        "the port is taken by another process",
        "stop it, or choose another `ports.base`",
        "OSError: [Errno 98] error while attempting to bind on address ('10.0.0.1', 8998): address already in use",
    ),
    _row(
        "too-few-gpus",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        r"the engine wants \1 GPUs and sees \2",
        "lower tp, or check which GPUs the host has",
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",
        "is larger than the number of available GPUs",
    ),
    _row(
        "invalid-gpu",
        r"CUDA error: invalid device ordinal|HIP error: invalid device ordinal",
        "the engine was given a GPU that the host does not have",
        "check `hosts.*.gpus` and CUDA_VISIBLE_DEVICES",
        "RuntimeError: CUDA error: invalid device ordinal",
    ),
    _row(
        "no-gpu",
        r"No CUDA GPUs are available|Found no NVIDIA driver|Failed to infer device type|CUDA driver version is insufficient"
        r"|NVIDIA driver on your system is too old",
        "the engine sees no usable GPU",
        "check the driver and CUDA_VISIBLE_DEVICES, or set engine.device: cpu",
        "RuntimeError: No CUDA GPUs are available",
    ),
    _row(
        "gpu-fault",
        r"CUDA error: (uncorrectable ECC error encountered|an illegal memory access was encountered|unspecified launch failure"
        r"|device-side assert triggered|misaligned address)",
        r"the GPU reported: \1",
        "look at dmesg for Xid lines; try it with enforce-eager: true",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    _row(
        "no-kernel-for-gpu",
        r"no kernel image is available for execution on the device",
        "this build has no kernels for this GPU",
        "use a wheel built for it",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    _row(
        "no-bfloat16",
        r"Bfloat16 is only supported on GPUs with compute capability|dtype\S* is not supported .*bfloat16",
        "the GPU has no bfloat16",
        "set dtype: float16",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has 7.5.",
    ),
    _row(
        "nccl-one-gpu",
        r"Duplicate GPU detected",
        "NCCL refuses two ranks on one GPU",
        "give each its own GPU, or set share_gpus",
        "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    ),
    _row(
        "nccl-interface",
        r"no socket interface found|Bootstrap : no socket interface|Unable to find address for: (\S+)|ifa_name .* not found",
        "NCCL or Gloo finds no network interface of the name it was given",
        "correct the host's `interface`",
        "net.cc:42 NCCL WARN Bootstrap : no socket interface found",
    ),
    _row(
        "nccl-failed",
        r"NCCL error[^:]*: (.+)|DistBackendError: (NCCL error.*)",
        r"NCCL failed: \1\2",
        "look at `interface`, and at the log with NCCL_DEBUG=INFO in env",
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ),
    _row(
        "gloo-connect",
        r"Gloo connectFullMesh failed|DistNetworkError|c10d.*(?:timed out|failed to connect)|TCPStore.*(?:timed out|failed)",
        "the ranks of this engine can't reach each other",
        "check `interface` and `address` of the hosts, and the firewall between them",
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    _row(
        "open-files",
        r"Too many open files",
        "the limit on open files is too low",
        "raise it with `ulimit -n`",
        "OSError: [Errno 24] Too many open files",
    ),
    _row(
        "threads",
        r"can't start new thread|Resource temporarily unavailable.*(?:fork|thread|pthread_create)|pthread_create failed",
        "the limit on processes and threads is too low",
        "raise it with `ulimit -u`, or the container's pids limit",
        "RuntimeError: can't start new thread",
    ),
    _row(
        "illegal-instruction",
        r"Illegal instruction",
        "the CPU lacks an instruction that this build uses",
        "use another build, or dtype: float32",
        "Fatal Python error: Illegal instruction",
    ),
    _row(
        "illegal-instruction-worker",
        r"Worker proc (\S+) died unexpectedly \(exit code: -4\)",
        r"\1 died of an illegal instruction",
        "on CPU use dtype: float32",
        "Worker proc VllmWorker-0 died unexpectedly (exit code: -4), shutting down executor.",
        "died unexpectedly (exit code: ",
    ),
)

_MODEL = (
    _row(
        "no-vllm",
        r"No module named '?vllm(?:\.|'|$)",
        "this interpreter has no vLLM",
        "name the right one with `engine.python` or `engine.activate`",
        "ModuleNotFoundError: No module named 'vllm'",
    ),
    _row(
        "module-missing",
        r"(?:ModuleNotFoundError|ImportError): No module named '?([\w.]+)",
        r"the engine's environment lacks the module \1",
        "install it there",
        "ModuleNotFoundError: No module named 'lmcache'",
    ),
    _row(
        "library-missing",
        r"ImportError: (lib\S+): cannot open shared object file",
        r"the library \1 is not found",
        "install it, or extend LD_LIBRARY_PATH in env",
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
    ),
    _row(
        "abi",
        r"ImportError: \S+: undefined symbol: (\S+)",
        "a compiled module does not fit the installed torch",
        "install vLLM into a fresh environment",
        "ImportError: /venv/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
    ),
    _row(
        "gated-model",
        r"GatedRepoError|401 Client Error|Access to model (\S+) is restricted",
        "the model is gated on the hub",
        "set HF_TOKEN, or use a local path",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
    ),
    _row(
        "no-such-model",
        r"RepositoryNotFoundError|HFValidationError: |is not a local folder and is not a valid model identifier|Repo id must be in the form",
        "the model is neither a folder on the host nor a model of the hub",
        "check `model`",
        "OSError: qwen3 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    ),
    _row(
        "hub-unreachable",
        r"LocalEntryNotFoundError|We couldn't connect to '?https?://|offline mode is enabled|MaxRetryError",
        "the model is not on the host and the hub cannot be reached",
        "use a local path",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    _row(
        "no-model-folder",
        r"Invalid repository ID or local directory specified: '([^']+)'",
        r"there is no model at \1",
        "check `model`: it must be on this host",
        "ValueError: Invalid repository ID or local directory specified: '/models/none'.",
        "Invalid repository ID or local directory specified:",
    ),
    _row(
        "model-file-missing",
        r"No such file or directory: '([^']*(?:config\.json|tokenizer|safetensors)[^']*)'",
        r"the model lacks \1",
        "check the model's folder",
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/a/model-00001-of-00002.safetensors'",
    ),
    _row(
        "weights-broken",
        r"SafetensorError: (.+)|Error while deserializing header",
        r"a weight file is damaged or incomplete: \1",
        "fetch the model again",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    _row(
        "architecture",
        r"Model architectures? \[?([^\]]*?)\]? (?:are|is) not supported",
        r"this vLLM does not support the architecture \1",
        "use another version or model",
        "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
        " are not supported for now. ",
    ),
    _row(
        "too-long",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(([^)]*)",
        r"max-model-len \1 is more than the model's own limit (\2)",
        "lower max-model-len",
        "  Value error, User-specified max_model_len (40960) is greater than the derived max_model_len (max_position_embeddings=32768 or ...)",
        "is greater than the derived max_model_len ",
    ),
    _row(
        "heads",
        r"[Tt]otal number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        r"tp \2 does not divide the model's \1 attention heads",
        "use a tp that does",
        "ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4).",
        " must be divisible by tensor parallel size ",
    ),
)

_WEAK = (
    _row(
        "nixl-listener",
        r"Exception in thread nixl_handshake_listener",
        "the NIXL side channel could not be opened, and the engine waits for it for ever",
        "look at the lines below; choose another `ports.base`, or correct the host's `address`",
        "Exception in thread nixl_handshake_listener:",
        'name="nixl_handshake_listener"',
        "weak",
        hangs=True,
    ),
    _row(
        "worker-died",
        r"Worker proc (\S+) died unexpectedly",
        r"\1 died",
        "look at the lines before it",
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
        "died unexpectedly",
        "weak",
    ),
    _row(
        "segfault",
        r"Fatal Python error: (.+)|Segmentation fault",
        r"the process crashed: \1",
        "look at the stack below it",
        "Fatal Python error: Segmentation fault",
        weight="weak",
    ),
)

_HARM = (
    _row(
        "nixl-incompatible",
        r"NIXL compatibility hash mismatch",
        "producer and consumer differ in vLLM version, model string, dtype, layout or attention backend; no KV moves",
        "make them equal: one `model`, one vLLM version, the same dtype and kv-cache-dtype",
        "RuntimeError: NIXL compatibility hash mismatch. Local: 1f0c, Remote: 77aa. Prefill and decode instances have incompatible",
        "NIXL compatibility hash mismatch. ",
        "harm",
    ),
    _row(
        "nixl-payload",
        r"Failed to decode Nixl(?:HandshakePayload|AgentMetadata)",
        "producer and consumer speak different versions of the NIXL handshake",
        "run one vLLM version on all hosts",
        "RuntimeError: Failed to decode NixlHandshakePayload. This likely indicates an incompatibility between connector version.",
        "Failed to decode NixlHandshakePayload.",
        "harm",
    ),
    _row(
        "nixl-engine-id",
        r"Remote NIXL agent engine ID mismatch",
        "the side channel answers for another engine than the one that has the KV: two engines share an address, or the producer was restarted",
        "give each engine its own side-channel port; pdctl does",
        "RuntimeError: Remote NIXL agent engine ID mismatch. Expected a1, received b2.",
        "Remote NIXL agent engine ID mismatch. ",
        "harm",
    ),
    _row(
        "nixl-layouts",
        r"Heterogeneous TP expects same kv_cache_layout",
        "prefill and decode have different tp and different KV cache layouts",
        "set one VLLM_KV_CACHE_LAYOUT in env, or one tp",
        "AssertionError: Heterogeneous TP expects same kv_cache_layout. Or enable experimental feature to use HND to NHD support by",
        "Heterogeneous TP expects same kv_cache_layout",
        "harm",
    ),
    _row(
        "nixl-shape",
        r"Remote P worker KV layer cache must be of shape|KV cache sizes must match between P and D",
        "the KV caches of prefill and decode have different shapes",
        "make dtype, kv-cache-dtype and block-size equal, and use a tp that divides the other",
        "AssertionError: Remote P worker KV layer cache must be of shape [2, N, local_kv_heads*tp_ratio, page_size, head_dim] and same dtype.",
        "Remote P worker KV layer cache must be of shape [2, N,",
        "harm",
    ),
    _row(
        "nixl-transfer",
        r"NIXL transfer failure: (\w+)",
        r"a KV transfer failed: \1",
        "look at the lines around it; check that the consumer can reach the producer's side channel",
        "NIXL transfer failure: handshake_failed | Context: {'req_id': 'cmpl-1'}",
        "NIXL transfer failure: %s | Context: %s",
        "harm",
    ),
    _row(
        "nixl-lease",
        r"Releasing expired KV blocks for request",
        "KV waited at the producer until its lease ended: the consumer never came, or came too late",
        "look why the consumer is slow; raise kv_lease_duration in connector.extra",
        "Releasing expired KV blocks for request cmpl-1 which were retrieved by 0 remote worker(s) before lease expired.",
        "Releasing expired KV blocks for request ",
        "harm",
    ),
    _row(
        "nixl-read-after-lease",
        r"Potentially invalid KV blocks for unrecognized request",
        "a consumer read KV whose lease had ended: other requests may have written over it, and its answer may be wrong",
        "look why the consumer is slow; raise kv_lease_duration in connector.extra",
        "Potentially invalid KV blocks for unrecognized request cmpl-1 were retrieved by a decode worker. They may have expired.",
        "Potentially invalid KV blocks for unrecognized request ",
        "harm",
    ),
    _row(
        "bad-transfer-params",
        r"Got invalid KVTransferParams",
        "the proxy passed incomplete kv_transfer_params; the request may never end",
        "use pdctl's proxy, or one that passes them on unchanged",
        "Got invalid KVTransferParams: {'do_remote_prefill': True}. This request will not utilize KVTransfer",
        "Got invalid KVTransferParams: %s. This ",
        "harm",
    ),
    _row(
        "no-connector",
        r"Got kv_transfer_params, but no KVConnector found",
        "this engine was started without a connector and computes the prompts again",
        "start it with --kv-transfer-config; pdctl does",
        "Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request.",
        "Got kv_transfer_params, but no KVConnector found. ",
        "harm",
    ),
    _row(
        "kv-load-failed",
        r"Failing (\d+) request\(s\) due to KV load failure",
        r"KV did not arrive and \1 requests failed of it",
        "look for the transfer's error above; kv_load_failure_policy: recompute would serve them slowly",
        "Failing 2 request(s) due to KV load failure (failure_policy=fail, 512 tokens affected). Request IDs: {'a', 'b'}",
        "Failing %d request(s) due to KV load failure ",
        "harm",
    ),
    _row(
        "kv-recomputed",
        r"Recovered from KV load failure: (\d+) request",
        r"KV did not arrive, and \1 requests were computed again on the consumer",
        "look for the transfer's error above",
        "Recovered from KV load failure: 1 request(s) rescheduled (512 tokens affected).",
        "Recovered from KV load failure: ",
        "harm",
    ),
    _row(
        "p2p-no-kv",
        r"kv_cache is None, (\S+)",
        r"P2pNccl lost the KV of \1 and decoded from garbage: this answer is wrong",
        "raise connector.extra.mem_pool_size_gb; lower gpu-memory-utilization on decode",
        "🚧kv_cache is None, cmpl-1",
        "kv_cache is None, %s",
        "harm",
    ),
    _row(
        "p2p-threshold",
        r"Recv Tensor, Out Of Threshold",
        "received KV is more than kv_buffer_size and goes through pinned memory, which is slow",
        "raise kv_buffer_size on decode (bytes, 4e9 or more)",
        "🔴[PUT]Recv Tensor, Out Of Threshold, 10.0.0.2:21100👈10.0.0.1:21000, data:{}, addr:1",
        "🔴[PUT]Recv Tensor, Out Of Threshold, ",
        "harm",
    ),
    _row(
        "p2p-no-memory",
        r"Recv Tensor, Out Of Memory|Peer Out Of Memory/Threshold",
        "the consumer has no GPU memory for received KV; answers go wrong",
        "lower gpu-memory-utilization on decode: received KV lies outside vLLM's share",
        "🔴[PUT]Recv Tensor, Out Of Memory, 10.0.0.2:21100👈10.0.0.1:21000, data:{}",
        "🔴[PUT]Recv Tensor, Out Of Memory, %s👈%s, data:%s",
        "harm",
    ),
    _row(
        "mooncake-no-id",
        r"Missing transfer_id in kv_transfer_params",
        "the proxy does not speak Mooncake's protocol: no KV moves",
        "use a proxy that does (vLLM's example mooncake_connector_proxy.py)",
        "Missing transfer_id in kv_transfer_params from router!",
        "Missing transfer_id in kv_transfer_params from router!",
        "harm",
    ),
    _row(
        "mooncake-engine-gone",
        r"engine_id \S+ not found from bootstrap|Failed to find remote engine_id",
        "the producer was restarted, and the proxy still names its old engine id",
        "let the proxy ask the bootstrap server again",
        "remote engine_id 5c1e not found from bootstrap server http://10.0.0.1:8998",
        "from bootstrap server",
        "harm",
    ),
    _row(
        "mooncake-bootstrap-unreachable",
        r"Failed to connect to bootstrap server (\S+)",
        r"the consumer does not reach the producer's bootstrap server at \1",
        "check the producer's `address`, and the firewall between the hosts",
        "Failed to connect to bootstrap server http://10.0.0.1:8998: timed out",
        "Failed to connect to bootstrap server %s",
        "harm",
    ),
    _row(
        "mooncake-expired",
        r"Timeout waiting for P side ready|without being sent\. Freeing its blocks",
        "KV was not fetched, or not ready, in time",
        "look at the other side's log; raise VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
        "Timeout waiting for P side ready: ['cmpl-1']",
        "Timeout waiting for P side ready: %s",
        "harm",
    ),
    _row(
        "moriio-request-id",
        r"Cannot parse peer zmq_address from request_id",
        "a request reached MoRIIO that did not come through its proxy",
        "send requests to the proxy only",
        "ValueError: Cannot parse peer zmq_address from request_id: 'cmpl-1'",
        "Cannot parse peer zmq_address from request_id: ",
        "harm",
    ),
    _row(
        "unknown-variable-warned",
        r"Unknown vLLM environment variable detected: (\S+)",
        r"this vLLM does not know the variable \1 and ignores it",
        "remove it from `env`, or correct its name",
        "Unknown vLLM environment variable detected: VLLM_PD_ROLE",
        "Unknown vLLM environment variable detected: %s",
        "harm",
    ),
)

SIGNATURES: tuple[Signature, ...] = (*_ARGUMENTS, *_CONNECTORS, *_MEMORY, *_PLACES, *_MODEL, *_WEAK, *_HARM)
"""Of two rows that match a line the first wins; of two lines with a `cause` the earlier."""

STUCK: tuple[tuple[str, str], ...] = tuple((row.pattern.pattern, row.cause) for row in SIGNATURES if row.hangs)
"""(regular expression, reason): the shim ends an engine that prints one of these while it starts."""
