"""Test settings from environment and file, and their list, which holds every variable that is read."""

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.config import SECTIONS, list_settings
from app.cli.main import main
from app.cli.settings_page import page
from app.config import FILE_VARIABLE, PREFIX, REMOVED, ROOT, Settings, variable
from app.errors import InvalidSettings
from app.local.process_specs import services, settings_environment
from app.plans import PARTS
from app.variables import OTHERS, SETTINGS

KNOWN = {info.name for info in list_settings({FILE_VARIABLE: os.devnull})}
OURS = ("app", "workers", "web", "kernels", "bench", "lab", "training")
TEXTS = ("*.md", "docs/**/*.md", "examples/*", "compose.yaml", "Dockerfile", "paceline", ".ci/*", "deploy/**/*")
# These read variables by their settings.
BY_NAME = {"app/config.py", "app/cli/config.py", "workers/run.py", "bench/load/run.py"}
READS = {"get", "setdefault", "pop", "getenv"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def read(file: Path, text: str, **environ: str) -> Settings:
    file.write_text(text)
    return Settings.from_env({FILE_VARIABLE: str(file), **environ})


def test_each_variable_that_a_text_names_is_listed() -> None:
    files = [path for top in (*OURS, "tests") for path in (ROOT / top).rglob("*.py")]
    files += [path for pattern in TEXTS for path in ROOT.glob(pattern) if path.is_file()]
    assert len(files) > 200
    named = {name: path for path in files for name in re.findall(r"PACELINE_[A-Z][A-Z0-9_]*", path.read_text())}
    gone = {variable(name) for name in (*REMOVED, *PARTS)}
    assert {name: path for name, path in named.items() if name not in KNOWN | gone} == {}


def test_each_variable_that_is_read_is_listed() -> None:
    texts = {path: path.read_text() for top in OURS for path in (ROOT / top).rglob("*.py")}
    texts[ROOT / "paceline"] = (ROOT / "paceline").read_text()
    trees = {path: ast.parse(text) for path, text in texts.items() if "environ" in text or "getenv" in text}
    read = {(str(path.relative_to(ROOT)), key) for path, tree in trees.items() for key in _keys(tree)}
    assert {(path, key) for path, key in read if key not in KNOWN and not (key is None and path in BY_NAME)} == set()
    assert {"PACELINE_PYTHON", "TRITON_INTERPRET", "HF_HUB_OFFLINE", FILE_VARIABLE} <= {key for _, key in read}


def _keys(tree: ast.Module) -> Iterator[str | None]:
    """Collect the names under which a module reads the environment; None for a computed one."""
    names = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and _is_environment(node.value):
            key = node.slice
        elif isinstance(node, ast.Compare) and any(_is_environment(one) for one in node.comparators):
            key = node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
            key = node.args[0] if node.func.attr == "getenv" or _is_environment(node.func.value) else None
        if key is not None:
            found = names.get(key.id) if isinstance(key, ast.Name) else getattr(key, "value", None)
            yield found if isinstance(found, str) else FILE_VARIABLE if ast.unparse(key) == "FILE_VARIABLE" else None


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def test_each_setting_has_unit_effect_value_and_source(file: Path) -> None:
    file.write_text('lease_s = 3.0\nlog_format = "json"\nredis_url = "redis://:hidden@host/0"')
    found = {info.name: info for info in list_settings({FILE_VARIABLE: str(file), "PACELINE_LEASE_S": "4"})}
    assert found.keys() == KNOWN >= {variable(name) for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        info = found[PREFIX + name.upper()]
        assert info.group == SETTINGS and info.effect == field.description and len(info.effect) > 10
        assert not info.unit.startswith("number"), f"{name}: app/cli/config.py does not know its unit"
    lease, form, url = (found[f"PACELINE_{name}"] for name in ("LEASE_S", "LOG_FORMAT", "REDIS_URL"))
    assert (lease.unit, lease.default, lease.value, lease.source) == ("seconds > 0.1", "2.0", "4.0", "environment")
    assert (form.unit, form.default, form.value, form.source) == ("text | json", "text", "json", str(file))
    assert url.value == "redis://***@host/0"
    assert found["PACELINE_KV_BYTES"].value is None and found["PACELINE_QUEUE"].source == "default"


def test_environment_beats_file_and_file_beats_default(file: Path) -> None:
    text = 'drafters = ["a", "b"]\nkv_bytes = 5_000_000\ngpu_exact = true\nhome = "~/models"\nlease_s = 3'
    settings = read(file, text, PACELINE_KV_BYTES="6000000", PACELINE_LEASE_S="")
    assert settings.drafters == ("a", "b") and settings.gpu_exact and settings.home == Path.home() / "models"
    assert (settings.kv_bytes, settings.lease_s, settings.drain_s) == (6_000_000, 3.0, 0.0)
    assert settings.model_fields_set == {"drafters", "gpu_exact", "home", "kv_bytes", "lease_s"}


@pytest.mark.parametrize("text", ["drafters = []", 'drafters = "none"', 'drafters = ["none"]'])
def test_no_drafters_has_one_spelling_and_is_handed_on(file: Path, text: str) -> None:
    settings = read(file, text)
    assert settings.drafters == () == read(file, "", PACELINE_DRAFTERS="none").drafters
    assert Settings.from_env(settings_environment(settings)).drafters == ()
    assert {info.name: info.value for info in list_settings(settings_environment(settings))}[
        "PACELINE_DRAFTERS"
    ] == "none"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lease = 3", r"settings.toml: lease: no such setting; lease_s, perhaps"),
        ("[verify]\nthreads = 3", r"settings.toml: verify: no such setting"),
        ('lease_s = "soon"', r"settings.toml: lease_s: Input should be a valid number"),
        ("lease_s = 0.0", r"settings.toml: lease_s: Input should be greater than 0.1"),
        ('drafters = "smol-general"', r"settings.toml: drafters: Input should be a valid tuple"),
        ("vllm_arguments = '{'", r"settings.toml: vllm_arguments: Value error, is no JSON"),
        ("vllm_arguments = '3'", r"settings.toml: vllm_arguments: Value error, must be a JSON object"),
        ('activations = "best"', r"settings.toml: activations: Input should be 'float32'"),
        ('plan = "best"', r"settings.toml: plan: there is no plan 'best'"),
        (
            'routing = "all"',
            r"settings.toml: routing: no longer a setting but a part of the plan: write it into a TOML",
        ),
        ("lease_s: 3", r"settings.toml is not valid TOML: .*line 1"),
        ("drafters = " + "[" * 100_000, r"settings.toml is not valid TOML"),
        ("page_tokens = 16", r"settings.toml: page_tokens: no longer a setting: it is always 16 \("),
    ],
)
def test_errors_of_the_file_name_its_key(file: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        read(file, text)


def test_errors_name_the_variable_that_beats_the_file(file: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"^PACELINE_LEASE_S: Input should be a valid number"):
        read(file, "lease_s = 3.0", PACELINE_LEASE_S="soon")
    with pytest.raises(InvalidSettings, match=r"nowhere.toml cannot be read: No such file"):
        Settings.from_env({FILE_VARIABLE: "/nowhere.toml"})


def test_file_is_searched_in_the_working_then_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(FILE_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of user"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "of user" / "paceline").mkdir(parents=True)
    (tmp_path / "of user" / "paceline" / "config.toml").write_text("drain_s = 7.0")
    assert Settings.from_env().drain_s == 7.0
    Path("paceline.toml").write_text("drain_s = 8.0\nlease_s = 9.0")
    assert Settings.from_env().drain_s == 8.0
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert f"PACELINE_DRAIN_S = 8.0  (from {tmp_path}/here/paceline.toml, default 0.0; seconds >= 0.0)" in printed
    assert "PACELINE_DRAFTERS = smol-general  (from the plan pace; names" in printed
    assert "PACELINE_KV_BYTES is not set  (bytes" in printed and "\n  fusion = tree\n" in printed
    titles = [line for line in printed.splitlines() if line.startswith(" ") and not line.startswith("  ")]
    assert titles == [f" {title}" for title in SECTIONS.values()]
    assert main(["config", "--json"]) == 0
    listed = {info["name"]: info["value"] for info in json.loads(capsys.readouterr().out)}
    assert listed["PACELINE_LEASE_S"] == "9.0"
    Path("paceline.toml").write_text("lease = 9.0")
    for words in (["config"], ["status"], ["bench", "--help"]):
        assert main(words) == 2
        assert "here/paceline.toml: lease: no such setting" in capsys.readouterr().err


def test_removed_settings_are_refused_by_name(file: Path) -> None:
    assert not REMOVED.keys() & Settings.model_fields.keys()
    for name, constant in REMOVED.items():
        with pytest.raises(InvalidSettings) as refused:
            read(file, "", **{variable(name): "16"})
        assert str(refused.value) == f"{variable(name)}: no longer a setting: it is always {constant}; remove it"
    with pytest.raises(InvalidSettings, match=r"^PACELINE_FUSION: no longer a setting but a part of the plan"):
        read(file, "", PACELINE_FUSION="tree")
    assert read(file, "", PACELINE_PAGE_TOKENS="") == Settings()


def test_started_processes_read_no_file(file: Path) -> None:
    settings = read(file, "lease_s = 3.0\nkv_bytes = 5_000_000")
    for service in services(settings, 8123):
        assert service.env[FILE_VARIABLE] == os.devnull and service.env["PACELINE_LEASE_S"] == "3.0"
    assert Settings.from_env(settings_environment(settings)).kv_bytes == 5_000_000


def test_the_page_of_settings_is_current() -> None:
    """`python -m app.cli.settings_page > docs/settings.md` makes it."""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("KEY", "PACELINE_KEYS, perhaps"),
        ("Keys", "PACELINE_KEYS, perhaps"),
        ("LEASE", "PACELINE_LEASE_S, perhaps"),
        ("XYZ", "`paceline config` lists them"),
    ],
)
def test_misspelt_variables_are_refused(name: str, hint: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Settings.from_env({PREFIX + name: "x"})
    assert str(refused.value) == f"{PREFIX}{name}: no such setting; {hint}"
    assert Settings.from_env({PREFIX + name: ""}) == Settings()


def test_variables_of_others_are_none_of_ours() -> None:
    of_others = {name: "1" for _, name, *_ in OTHERS if name != FILE_VARIABLE}
    of_kubernetes = {"SERVICE_HOST": "10.0.0.1", "WEB_SERVICE_PORT_HTTP": "80", "WEB_PORT": "tcp://10.0.0.1:80"}
    of_kubernetes |= {"PORT_8000_TCP_ADDR": "10.0.0.1"}
    assert Settings.from_env(of_others | {PREFIX + key: value for key, value in of_kubernetes.items()}) == Settings()
    with pytest.raises(InvalidSettings):
        Settings.from_env({PREFIX + "WEB_PORT": "80"})
