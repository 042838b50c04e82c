"""The shape of the code, as a test: imports point down and never in a circle, stages are strangers, files are short."""

import ast
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOPS = ("kernels", "app", "workers", "web", "bench", "training")
LAYERS = [  # lowest first; a module may import its own layer and those before it in this list
    ("kernels.*",),
    (
        "app.clock",
        "app.config",
        "app.config",
        "app.errors",
        "app.system",
        "app.request",
        "app.logs",
        "app.system",
        "workers.deployment",
        "app.messages",
        "app.metrics",
        "app.state",
    ),
    (
        "app.api_keys",
        "app.estimates.calibration",
        "app.estimates.step_costs",
        "app.stages.route.drafter_pool",
        "app.estimates.acceptance",
        "app.estimates.drafter_priors",
        "app.cli.config",
        "app.stages.steer.load",
        "app.drafter.replicas",
        "app.placement.partition",
        "app.policy",
        "app.stages.route.scores",
        "app.telemetry.counters",
    ),
    ("app.verifier.stats", "app.stages.schedule.prefill"),
    ("app.store.*", "app.engine.*"),
    ("app.stages.*",),
    (
        "app.stages.length.controller",
        "app.verifier.pending_commit",
        "app.drafter.drafter",
        "app.verifier.dispatch",
        "app.store.shared_stats",
        "app.drafter.replicas",
        "app.fuser.fuser",
        "app.fuser.rounds",
        "app.intake_zz",
        "app.placement.interference",
        "app.stages.length.baselines",
        "app.telemetry.verifier_metrics",
        "app.offered_zz",
        "app.verifier.overlap",
        "app.engine.early_exit.controller",
        "app.verifier.preemption",
        "app.verifier.out_of_memory",
        "app.stages.route.router",
        "app.verifier.sequences",
        "app.engine.target",
    ),
    ("app.pipeline",),
    ("app.assembly.local*",),
    ("app.local.*", "app.cli.main*"),
    ("workers.*",),
    ("web.*",),
    ("bench.*", "training.*"),
]
WITH_TORCH = (  # all others import without it: web, control and the fusion never load it
    "kernels.*",
    "app.engine.drafters.token_similarity",
    "app.engine.cpu.model_spec",
    "app.engine.cpu.draft_chain",
    "app.engine.weights.gguf",
    "app.engine.device.*",
    "app.engine.drafters.loader",
    "app.engine.drafters.features",
    "app.engine.cpu.forward",
    "app.engine.cpu.fused",
    "app.engine.drafters.guesser",
    "app.engine.cpu.hooked",
    "app.engine.cpu.verified_cache",
    "app.engine.kv.pages",
    "app.engine.cpu.choose_forward",
    "app.engine.weights.families",
    "app.engine.profile.profiler",
    "app.engine.profile.profile_cache",
    "app.engine.cpu.load",
    "app.engine.kv.block_manager",
    "app.engine.packing",
    "app.engine.early_exit.predictors",
    "app.engine.early_exit.rows",
    "app.engine.weights.hf_reader",
    "app.engine.cpu.runner",
    "app.engine.cpu.step_arrays",
    "app.engine.cpu.attention_tiles",
    "app.engine.cpu.equivalence",
    "app.engine.weights.tensors",
    "app.assembly.local",
    "app.assembly.devices",
    "app.local.one_shot",
    "workers.roles.draft",
    "workers.roles.colocated",
    "workers.roles.verify",
    "bench.*",
    "training.*",
)
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for top in TOPS
    for path in sorted((ROOT / top).rglob("*.py"))
    if path.name != "__init__.py"
}


def layer(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if any(fnmatch(module, name) for name in names))


def imports(path: Path) -> set[str]:
    """The project modules that a file imports, in-function imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & FILES.keys()


GRAPH = {module: imports(path) for module, path in FILES.items()}


@pytest.mark.parametrize("module", FILES)
def test_imports_point_down(module):
    assert not [target for target in GRAPH[module] if layer(target) > layer(module)]


def test_no_import_circles():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, naming the circle


def test_stages_are_strangers():
    """One stage never imports another; drafters share their protocol and how models draft; the registry knows all."""

    def stage(module: str) -> str | None:
        return module.removeprefix("app.stages.") if module.startswith("app.stages.") else None

    pairs = [(m, t) for m in GRAPH for t in GRAPH[m] if stage(m) and stage(t)]
    shared = {f"app.stages.draft.{name}" for name in ("protocol", "grow", "reader", "cooperative")}
    allowed = [(m, t) for m, t in pairs if t in shared or m == "app.stages.draft.registry"]
    assert set(pairs) == {(m, t) for m, t in allowed if m.startswith("app.stages.draft.")}


def test_only_the_store_speaks_to_redis():
    users = {module for module, path in FILES.items() if "redis" in foreign(path)}
    assert {module for module in users if module.startswith("app.")} <= {
        *(module for module in FILES if module.startswith("app.store.")),
        "app.local.redis_server",  # starts one and asks whether it answers
    }


def test_the_app_knows_neither_celery_nor_flask():
    assert not [
        m for m, path in FILES.items() if m.startswith(("app.", "kernels.")) and foreign(path) & {"celery", "flask"}
    ]


def test_nothing_is_pickled():
    """Whoever can write a pickle that is read runs code of his own there (design D9)."""
    pickles = {"pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}
    assert not [module for module, path in FILES.items() if foreign(path) & pickles]
    through_others = ("torch.load(", "torch.save(", "allow_pickle=True")
    assert not [module for module, path in FILES.items() if any(call in path.read_text() for call in through_others)]


@pytest.mark.parametrize("module", FILES)
def test_files_are_short(module):
    assert len(FILES[module].read_text(encoding="utf-8").splitlines()) <= 300


def test_packages_hold_no_code():
    for top in TOPS:
        for path in (ROOT / top).rglob("__init__.py"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert not [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))], path


def test_every_package_has_an_init():
    """setuptools leaves a folder without one out of the wheel."""
    for path in FILES.values():
        for folder in path.relative_to(ROOT).parents[:-1]:
            assert (ROOT / folder / "__init__.py").exists(), folder


def test_what_is_installed_lacks_no_file():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    kinds = ["*.py", *tool["package-data"]["*"]]
    assert {pattern.removesuffix("*") for pattern in tool["packages"]["find"]["include"]} == {*TOPS, "drafters"}
    files = [path for top in (*TOPS, "drafters") for path in (ROOT / top).rglob("*") if path.is_file()]
    kept = [path for path in files if "__pycache__" not in path.parts]
    assert [path for path in kept if not any(fnmatch(path.name, kind) for kind in kinds)] == []


LOADING = """
import importlib, sys
heavy, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
    if found := set(heavy.split()) & sys.modules.keys():
        sys.exit(f"{name} loads {found}")
"""


def check_loading(heavy: str, modules: list[str]) -> None:
    """In a process of its own, module by module, so that the first to load any of what is heavy is named."""
    command = [sys.executable, "-c", LOADING, heavy, *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_what_must_not_load_torch_does_not():
    light = [module for module in FILES if not any(fnmatch(module, name) for name in WITH_TORCH)]
    check_loading("torch transformers safetensors", light)


def test_how_threads_wait_is_said_before_what_reads_it_is_loaded():
    """Else numpy's threads spin for tens of milliseconds after a product, on the cores of whoever computes next."""
    check_loading("numpy torch", ["app.cli.main", "app.cli.run", "app.cli.generate", "workers.run"])


@cache
def foreign(path: Path) -> set[str]:
    """The top packages a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
    return found
