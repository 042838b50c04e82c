"""Test API keys: a private file without keys, whose changes count from the next call on."""

import json
import stat
import threading
from pathlib import Path

import pytest

from app.api_keys import Keyring, add_key, read_keys, remove_key
from app.cli.main import main
from app.errors import InvalidRequest, KeysUnreadable
from app.messages import PUBLIC_TENANT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "keys.jsonl"


def test_file_holds_no_key_and_is_private(path: Path) -> None:
    key = add_key(path, "me", rate_per_minute=60, concurrent=4)
    assert key.removeprefix("pk-") not in path.read_text() and len(key) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (known,) = read_keys(path)
    assert (known.name, known.tenant, known.rate_per_minute, known.concurrent) == ("me", "me", 60, 4)


def test_rewritten_file_stays_private(path: Path) -> None:
    add_key(path, "me")
    path.with_name(f".{path.name}.part").write_text("left by a killed command")
    path.with_name(f".{path.name}.part").chmod(0o644)
    add_key(path, "you")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_the_right_key_is_found(path: Path) -> None:
    keys = {name: add_key(path, name) for name in ("a", "b", "c")}
    ring = Keyring(path)
    assert {name: found.name for name, key in keys.items() if (found := ring.find(key))} == {n: n for n in "abc"}
    for wrong in ("", "pk-", keys["a"][:-1], keys["a"] + "x", keys["a"].lower(), read_keys(path)[0].sha256, "\udcff"):
        assert ring.find(wrong) is None


def test_changes_count_at_once(path: Path) -> None:
    first = add_key(path, "first")
    ring = Keyring(path)
    second = add_key(path, "second", tenant="first")
    found = ring.find(second)
    assert found is not None and found.tenant == "first"
    remove_key(path, "first")
    assert ring.find(first) is None and ring.find(second) is not None


def test_unreadable_file_refuses_each_key(path: Path) -> None:
    with pytest.raises(KeysUnreadable):
        Keyring(path)
    key = add_key(path, "me")
    ring = Keyring(path)
    path.write_text("what is this?\n")
    with pytest.raises(KeysUnreadable, match="line 1"):
        ring.find(key)
    path.unlink()
    with pytest.raises(KeysUnreadable):
        ring.find(key)


@pytest.mark.parametrize(
    "wrong", [{"name": "a b"}, {"name": ""}, {"name": "x" * 65}, {"tenant": "a:b"}, {"rate_per_minute": 0}]
)
def test_wrong_values_are_refused(wrong: dict[str, object], path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        add_key(path, **{"name": "me", **wrong})  # type: ignore[arg-type]
    assert refused.value.field == next(iter(wrong))
    assert not path.exists()


def test_public_tenant_must_be_named(path: Path) -> None:
    with pytest.raises(InvalidRequest, match="choose another name"):
        add_key(path, "public")
    add_key(path, "public", tenant="public")
    assert read_keys(path)[0].tenant == PUBLIC_TENANT


def test_concurrent_keys_are_all_kept(path: Path) -> None:
    makers = [threading.Thread(target=add_key, args=(path, f"key-{i}")) for i in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert {key.name for key in read_keys(path)} == {f"key-{i}" for i in range(8)}


def test_keys_commands(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PACELINE_KEYS", raising=False)
    assert main(["keys", "list"]) == 2 and "PACELINE_KEYS" in capsys.readouterr().err
    monkeypatch.setenv("PACELINE_KEYS", str(path))
    assert main(["keys", "add", "me", "--rate", "60/min", "--concurrent", "2", "--tenant", "us"]) == 0
    key = capsys.readouterr().out.strip()
    found = Keyring(path).find(key)
    assert found is not None and json.loads(found.model_dump_json())["tenant"] == "us"
    assert main(["keys", "add", "me"]) == 2 and "already" in capsys.readouterr().err
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed.split() == ["me", "tenant", "us", "rate", "60/min", "at", "once", "2"]
    assert main(["keys", "remove", "me"]) == 0 and main(["keys", "remove", "me"]) == 2
    assert read_keys(path) == ()
