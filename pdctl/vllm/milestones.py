"""What vLLM's start-up log says about where it is, and the gauges that show its load.

Read from vLLM 0.9.2 to 0.33.0 (v1/engine/core.py, v1/worker/gpu_model_runner.py, v1/core/kv_cache_utils.py,
entrypoints/openai/api_server.py) and from runs of 0.22.1 on an H200 and 0.32.0 on a CPU. Prefixes and places in
lines change between releases, so only the text is matched. The shim matches each new line with these while an instance
starts; the last line that matches is the phase.
"""

from __future__ import annotations

PHASES: tuple[tuple[str, str], ...] = (
    (r"Application startup complete", "serving"),
    (r"Starting (?:vLLM|sim).* server on|Started server process", "starting HTTP server"),
    (r"init engine \(profile, create kv cache, warmup model\) took", "starting HTTP server"),
    (r"Capturing CUDA graphs?[^:]*: +(\d+)%", r"capturing graphs \1%"),
    (r"Graph capturing finished", "graphs captured"),
    (
        r"Initializing NIXL|Registering KV_Caches|P2pNcclEngine init|Mooncake Transfer Engine is using",
        "starting KV connector",
    ),
    (r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens", r"KV cache of \1 tokens"),
    (r"Available KV cache memory|Initial profiling/warmup run took|Estimated CUDA graph memory", "profiling memory"),
    (
        r"torch\.compile took|Compiling a graph for|Dynamo bytecode transform|Starting torch\.compile|Directly load",
        "compiling",
    ),
    (r"Model loading took|Loading weights took", "weights loaded"),
    (r"Loading (?:safetensors|pt) checkpoint shards[^:]*: .*?(\d+)/(\d+)", r"loading weights \1/\2"),
    (r"Time spent downloading weights", "loading weights"),
    (r"Starting to load model", "loading weights"),
    (r"distributed_init_method=", "joining ranks"),
    (r"Initializing a V1 LLM engine", "starting engine"),
    (r"non-default args", "reading arguments"),
)
"""(regular expression, phase; `\\1` stands for a group), latest phase first: of two matches in a line the later phase wins."""

GAUGES: dict[str, str] = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc",
}
"""Our name -> Prometheus metric; `|` stands between names of different releases (kv_cache_usage_perc from 0.10 on)."""
