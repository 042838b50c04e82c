"""Test the shape of the code: folders stand in one order, imports point down and never in a circle, words are few.

`python tests/test_architecture.py` prints the drawing: every room with its floor and the rooms it imports.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOPS = ("kernels", "app", "workers", "web", "bench", "lab", "training")
CLIENT = ROOT / "client" / "paceline"  # the package that users' programs import
# Lowest first. A room is a folder, or a module that stands for itself; the longest name that fits a module is its room.
# A module imports its own room and rooms on lower floors, never another room on its own floor.
FLOORS = (
    ("paceline",),
    ("kernels.compile", "kernels.jit"),
    ("kernels.sampling",),
    ("kernels.host",),
    ("kernels.attention", "kernels.cpu", "kernels.layers", "kernels.sm_probe"),
    ("kernels",),
    ("app",),
    ("app.store", "app.placement"),
    ("app.engine.kv", "app.engine.text", "app.engine.weights"),
    ("app.engine",),
    ("app.engine.early_exit",),
    ("app.engine.cpu",),
    ("app.engine.drafters", "app.engine.profile"),
    ("app.engine.gpu",),
    (
        *(f"app.stages.{stage}" for stage in ("admit", "fuse", "verify", "commit", "result")),
        "app.stages.draft",
        "app.scheduler",
    ),
    ("app.speculation", "app.drafter", "app.engine.vllm"),
    ("app.verifier",),
    ("app.fuser",),
    ("app.pipeline",),
    ("app.assembly",),
    ("app.local",),
    ("app.cli",),
    ("workers.tracing",),
    ("workers",),
    ("workers.tasks",),
    ("workers.roles",),
    ("workers.bootstrap",),
    ("workers.run",),
    ("web",),
    ("web.api",),
    ("web.openai", "web.ops"),
    ("web.anthropic", "web.responses"),
    ("web.openapi",),
    ("web.factory",),
    ("web.server",),
    ("web.run",),
    ("bench",),
    ("lab",),
    ("training.prompts", "training.progress_bar", "training.exit_codes", "training.options"),
    ("training.data",),
    ("training.model", "training.early_exit"),
    ("training",),
)
WITH_TORCH = (  # all others import without it: web, control and fuse processes never load it
    "kernels.*",
    "app.engine.*",
    "app.assembly.*",
    "app.local.one_shot",
    "workers.roles.colocated",
    "workers.roles.draft",
    "workers.roles.verify",
    "bench.*",
    "lab.*",
    "training.*",
)
WITHOUT_TORCH = (  # of those
    "app.assembly.fuser",
    "app.engine.early_exit.controller",
    "app.engine.kv.prefix_hash",
    "app.engine.kv.sizing",
    "app.engine.step_costs",
    "app.engine.target",
    "app.engine.text.*",
    "app.engine.weights.fingerprint",
    "app.engine.weights.resolve",
    "app.engine.weights.served",
)
MOST_MODULES, MANY_MODULES = 25, 12  # of a folder
LONG_FILE = 300  # lines; a target, which is reported
BANNED = frozenset(
    re.findall(
        r"\w+",
        """aside asking bells crew desk discreet duty errand errands farewell gathering gauge guests guilty hush leavers
        lean lopped moment news noted offered office party pulse said seat seats shortage sieve spared strangers tally
        told usher""",
    )
)
BANNED_IN_PROSE = frozenset(("whoever", "nobody", "somebody", "everybody", "anybody", "everyone"))
ANOTHERS_WORDS = {"web.ops.metrics": {"gauge"}}  # Prometheus' own
TWICE = {"Message", "Model", "Usage"}  # OpenAI's names for what has one of ours
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for top in TOPS
    for path in sorted((ROOT / top).rglob("*.py"))
    if path.name != "__init__.py"
} | {f"paceline.{path.stem}": path for path in sorted(CLIENT.glob("*.py")) if path.name != "__init__.py"}
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def room(module: str) -> str:
    """The room of a module."""
    names = (name for floor in FLOORS for name in floor if module == name or module.startswith(f"{name}."))
    return max(names, key=len)


def floor_of(module: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if room(module) in floor)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> set[str]:
    """The project modules that a file imports, in-function imports included."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & FILES.keys()


GRAPH = {module: imports(path) for module, path in FILES.items()}


def drawing() -> str:
    """Every room, lowest floor first: its floor, its modules, and the rooms it imports."""
    arrows: dict[str, set[str]] = {}
    for module, targets in GRAPH.items():
        arrows.setdefault(room(module), set()).update(room(target) for target in targets)
    counts = Counter(room(module) for module in FILES)
    lines = []
    for i, floor in enumerate(FLOORS):
        for name in floor:
            lower = sorted(arrows.get(name, set()) - {name})
            lines.append(f"{i:>2}  {name:<24}{counts[name]:>3}  -> {', '.join(lower)}")
    return "\n".join(lines)


def test_imports_point_down():
    back = [
        f"{module} -> {target}"
        for module in FILES
        for target in sorted(GRAPH[module])
        if room(target) != room(module) and floor_of(target) >= floor_of(module)
    ]
    assert not back, f"{drawing()}\n\narrows that point up: {back}"


def test_the_client_needs_the_standard_library_alone():
    """A user's program loads no package of the server's, and the server none of the client's."""
    found = {path.name: foreign(path) - sys.stdlib_module_names - {"paceline"} for path in CLIENT.glob("*.py")}
    assert {name: packages for name, packages in found.items() if packages} == {}
    assert [module for module, path in FILES.items() if "paceline" in foreign(path) and path.parent != CLIENT] == []


def test_no_import_circles():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, naming the circle


def test_each_room_exists():
    rooms = {room(module) for module in FILES}
    assert [name for floor in FLOORS for name in floor if name not in rooms] == []


def test_each_kernel_is_called_by_the_app():
    reached: set[str] = set()
    ahead = {target for module in FILES if module.startswith("app.") for target in GRAPH[module]}
    while ahead:
        reached |= ahead
        ahead = {target for module in ahead for target in GRAPH[module]} - reached
    kernels = {module for module in FILES if room(module).startswith("kernels.")}  # `kernels` itself times them
    assert kernels - reached == set()


def test_stages_know_of_the_store_only_its_protocol():
    users = {(m, t) for m in FILES if m.startswith("app.stages.") for t in GRAPH[m] if t.startswith("app.store.")}
    assert {target for _, target in users} <= {"app.store.protocol"}


def test_stages_have_no_clock_thread_or_socket():
    outside = {"time", "threading", "socket", "redis", "asyncio", "subprocess"}
    stages = {module: foreign(FILES[module]) & outside for module in FILES if module.startswith("app.stages.")}
    assert {module: found for module, found in stages.items() if found} == {"app.stages.admit": {"time"}} or not any(
        stages.values()
    )


def test_folders_are_small():
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in FILES.values())
    print("folders of more than", MANY_MODULES, {name: n for name, n in counts.items() if n > MANY_MODULES})
    assert {name: n for name, n in counts.items() if n > MOST_MODULES} == {}


def test_long_files_are_reported():
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in FILES.items()}
    print("files of more than", LONG_FILE, "lines:", {name: n for name, n in lines.items() if n > LONG_FILE})
    assert max(lines.values()) <= 2 * LONG_FILE, "no file is two"


def words(identifier: str) -> set[str]:
    """The words of an identifier, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)}


def identifiers(path: Path) -> set[str]:
    """Every name that a file gives or uses."""
    found = {path.stem}
    for node in ast.walk(parsed(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found


def test_identifiers_use_the_glossary():
    """The words of docs/architecture.md, and none of those that they replaced."""
    found = {}
    for path in (*FILES.values(), *TESTS):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        banned = BANNED - ANOTHERS_WORDS.get(module, set())
        if path != Path(__file__) and (bad := {name for name in identifiers(path) if words(name) & banned}):
            found[module] = sorted(bad)
    assert found == {}


def prose(path: Path) -> str:
    """Docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    nodes = [n for n in ast.walk(parsed(path)) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    documents = [ast.get_docstring(node) or "" for node in nodes]
    comments = re.findall(r"(?:^|\s)#\s(.*)$", text, re.MULTILINE)
    return "\n".join([*documents, *comments])


def test_prose_names_who():
    """A component is named; a person who is not one of ours is a caller, a client, an operator."""
    found = {}
    for path in (*FILES.values(), *TESTS):
        if bad := set(re.findall(r"[a-z]+", prose(path).lower())) & BANNED_IN_PROSE:
            found[path.relative_to(ROOT).as_posix()] = sorted(bad)
    assert found == {}


def test_a_class_name_is_given_once():
    names = Counter(
        node.name
        for module, path in FILES.items()
        if module.partition(".")[0] in ("app", "workers", "web", "kernels")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} - TWICE == set()


def test_all_tests_are_collected(collected):
    """pytest skips folders of some names, such as `build`, without a word."""
    command = ["git", "ls-files", "tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("not a clone")
    assert {name for name in listed if re.search(r"(^|/)test_[^/]*\.py$", name)} - collected == set()


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
    """A pickle that is read runs its writer's code (design D9)."""
    pickles = {"pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}
    assert not [module for module, path in FILES.items() if foreign(path) & pickles]
    through_others = ("torch.load(", "torch.save(", "allow_pickle=True")
    assert not [module for module, path in FILES.items() if any(call in path.read_text() for call in through_others)]


def test_packages_hold_no_code():
    for top in TOPS:
        for path in (ROOT / top).rglob("__init__.py"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert not [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))], path


def test_every_package_has_an_init():
    """mypy names modules by them."""
    for path in FILES.values():
        if path.parent == CLIENT:
            continue
        for folder in path.relative_to(ROOT).parents[:-1]:
            assert (ROOT / folder / "__init__.py").exists(), folder


def test_what_is_installed_lacks_no_folder():
    """Each folder of the server lies in a private one, where no `app.py` of a user's hides it."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    installed = {*TOPS, "drafters"} - {"lab"}
    sources = {top: f"paceline/_server/{top}" for top in installed} | {"client/paceline": "paceline"}
    assert wheel["wheel"]["sources"] == sources and set(wheel["wheel"]["only-include"]) == sources.keys()


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


def fits(module: str, names: tuple[str, ...]) -> bool:
    return any(fnmatch(module, name) for name in names)


def test_what_must_not_load_torch_does_not():
    ours = FILES.keys() - {module for module in FILES if room(module) == "paceline"}  # which is not on the path
    light = [module for module in sorted(ours) if not fits(module, WITH_TORCH) or fits(module, WITHOUT_TORCH)]
    check_loading("torch transformers safetensors", light)


def test_a_worker_without_a_gpu_does_not_load_triton():
    """It takes a third of a second to import, and tens of megabytes."""
    check_loading("triton transformers", ["workers.roles.verify", "workers.roles.draft", "workers.roles.colocated"])


def test_what_neither_drafts_nor_verifies_does_not_load_numba():
    """It takes a sixth of a second of each process's start."""
    light = ["workers.bootstrap", "workers.roles.control", "workers.roles.beat", "web.run", "web.factory"]
    check_loading("numba torch", light)


def test_thread_environment_is_set_before_numpy_is_loaded():
    """Else numpy's threads spin for tens of milliseconds after a product, on the cores of the next step."""
    check_loading("numpy torch", ["app.cli.main", "app.cli.run", "app.cli.generate", "workers.run"])


@cache
def foreign(path: Path) -> set[str]:
    """The top packages a file imports."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
    return found


CITED = re.compile(r"\bdesign (D\d+)|\bpapers (\d+(?:\.\d+)*)|docs/decisions/(\d{4})|\bdecisions? (\d+)\b")


def test_citations_resolve():
    """Each "design D1", "papers 1.3" and "decision 9" in the sources is a heading or a file of docs/."""
    design = set(re.findall(r"^#+ (D\d+)\.", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE))
    papers = set(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", (ROOT / "docs/papers.md").read_text(), re.MULTILINE))
    decisions = {path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md")}
    broken = []
    for path in (*FILES.values(), *TESTS):
        for in_design, in_papers, file, number in CITED.findall(path.read_text(encoding="utf-8")):
            sound = (
                (not in_design or in_design in design)
                and (not in_papers or in_papers in papers)
                and (not file or file in decisions)
                and (not number or number.zfill(4) in decisions)
            )
            if not sound:
                broken.append((path.relative_to(ROOT).as_posix(), in_design or in_papers or file or number))
        other_form = re.search(r"papers' notes|`papers`|\(D\d+\)|\bby D\d+\b", path.read_text(encoding="utf-8"))
        if other_form and path != Path(__file__):
            broken.append((path.relative_to(ROOT).as_posix(), other_form.group()))
    assert broken == []


def test_named_modules_exist():
    """Each `app.x.y` and app/x/y.py that a text names is there."""
    dotted = re.compile(r"(?<![\w./\"'-])`((?:app|workers|web|kernels|bench|lab|training)(?:\.\w+)+)")
    paths = re.compile(
        r"(?<![\w./-])((?:app|workers|web|kernels|bench|lab|training|tests)/[\w/]+\.(?:py|lua|html|css|js))\b"
    )
    broken = []
    texts = [*FILES.values(), *TESTS, *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    for path in texts:
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        for name in dotted.findall(text):
            parts = name.split(".")
            found = any((ROOT.joinpath(*parts[:n]).with_suffix(".py")).is_file() for n in range(2, len(parts) + 1))
            if not found and not ROOT.joinpath(*parts).is_dir():
                broken.append((path.relative_to(ROOT).as_posix(), name))
        broken += [
            (path.relative_to(ROOT).as_posix(), name) for name in paths.findall(text) if not (ROOT / name).is_file()
        ]
    assert broken == []


if __name__ == "__main__":
    print(drawing())
