"""List the environment variables that are no settings, by who reads them."""

SETTINGS, START, PROCESS, COMPOSE, MEASURE = "settings", "start", "processes", "compose", "measuring"
GROUPS = {
    SETTINGS: "Settings: environment variables, or keys of the file (in small letters, without PACELINE_)",
    START: "How a command starts: environment only",
    PROCESS: "Of other libraries: read or set in each process; environment only, set by `up` for what it starts",
    COMPOSE: "Of compose.yaml and the image: environment or .env, beside the settings",
    MEASURE: "Of tests and benchmarks",
}

# Group, name, unit, default, effect.
OTHERS: tuple[tuple[str, str, str, str | None, str], ...] = (
    (START, "PACELINE_CONFIG", "path", None, "TOML file of settings; absent: ./paceline.toml, else config.toml below"),
    (START, "XDG_CONFIG_HOME", "path", "~/.config", "paceline/config.toml below it is the file of settings"),
    (START, "XDG_STATE_HOME", "path", "~/.local/state", "paceline/ below it: state and packages of an installed one"),
    (START, "PACELINE_PYTHON", "path", None, "interpreter that paceline runs instead of its own environment's"),
    (START, "PYTHONPATH", "paths", None, "kept; the clone's folder is put before it"),
    (PROCESS, "OMP_NUM_THREADS", "cores", None, "threads of products; `up` sets it to the role's _THREADS"),
    (PROCESS, "MKL_NUM_THREADS", "cores", None, "the same"),
    (PROCESS, "MALLOC_ARENA_MAX", "number", None, "heaps of glibc; `up` and compose.yaml set 2 for the web server"),
    (PROCESS, "HF_HUB_OFFLINE", "0 | 1", "1", "0 lets transformers ask its hub for what a model's folder lacks"),
    (PROCESS, "NUMBA_CACHE_DIR", "path", None, "folder of the CPU's compiled kernels; absent: beside their sources"),
    (PROCESS, "TRITON_CACHE_DIR", "path", "~/.triton/cache", "folder of the GPU's compiled kernels"),
    (PROCESS, "OTEL_EXPORTER_OTLP_HEADERS", "name=value,...", None, "sent to the collector of traces"),
    (PROCESS, "TQDM_DISABLE", "0 | 1", "1", "0 shows transformers' own bars"),
    (COMPOSE, "PACELINE_BIND", "address", "127.0.0.1", "where ports are published"),
    (COMPOSE, "PACELINE_PORT", "port", "8000", "of the page"),
    (COMPOSE, "PACELINE_COOPERATE_PORT", "port", "8001", "of the page of the profile `cooperate`"),
    (COMPOSE, "PACELINE_PROXY_PORT", "port", "8080", "of the proxy before several web servers"),
    (COMPOSE, "PACELINE_FLOWER_PORT", "port", "5555", "of Flower"),
    (COMPOSE, "PACELINE_PROMETHEUS_PORT", "port", "9090", "of Prometheus"),
    (COMPOSE, "PACELINE_GRAFANA_PORT", "port", "3000", "of Grafana"),
    (COMPOSE, "PACELINE_FLOWER_PASSWORD", "text", None, "of Flower's user paceline; without it Flower does not start"),
    (COMPOSE, "PACELINE_GRAFANA_PASSWORD", "text", "paceline", "of Grafana's user admin"),
    (COMPOSE, "PACELINE_IMAGE", "name", "paceline", "the image that is built or taken; -gpu after it: the GPU's"),
    (COMPOSE, "PACELINE_BUILD_NETWORK", "network", "default", "host: where only the host's network reaches a registry"),
    (COMPOSE, "TORCH_INDEX", "URL", None, "package index with another build of torch, at build time"),
    (MEASURE, "PACELINE_TEST_MODEL", "path", None, "the default target's folder, for tests that must not fetch it"),
    (MEASURE, "PACELINE_CHAOS_CLOCK", "path", None, "file of seconds by which `chaos` sets a process' clock off"),
    (MEASURE, "PACELINE_FUZZ", "examples", "5", "damaged model folders that a test tries"),
    (MEASURE, "CI", "true", None, "tests that lack a tool fail instead of being skipped"),
    (MEASURE, "TRITON_INTERPRET", "0 | 1", "0", "1 runs the GPU's kernels without one (bench/gpu/run.py, tests)"),
    (MEASURE, "VLLM_CPU_KVCACHE_SPACE", "GiB", "2", "of the rival in bench/peers"),
    (MEASURE, "VLLM_CPU_OMP_THREADS_BIND", "cores", None, "of the same; by default those it is given"),
)  # fmt: skip
