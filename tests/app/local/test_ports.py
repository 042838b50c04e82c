"""Test the ports of instances that start side by side."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from app.errors import InstanceError
from app.local.ports import HOST, any_free, is_free, web_port


def test_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(InstanceError, match=f"port {port} is taken"), web_port(port):
            pass


def test_concurrent_instances_get_two_ports() -> None:
    with web_port(None) as first, web_port(None) as second:
        assert first != second  # although neither has a listener yet


def test_reserved_port_is_refused_until_released() -> None:
    port = any_free()
    with web_port(port), pytest.raises(InstanceError), web_port(port):
        pass
    with web_port(port) as again:
        assert again == port


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of port locks, in a temporary folder of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"paceline-ports-{os.getuid()}"
    folder.mkdir()
    return folder


def test_link_in_place_of_a_lock_is_not_followed(locks: Path) -> None:
    port = any_free()
    (locks / "victim").write_text("kept")
    (locks / str(port)).symlink_to(locks / "victim")
    with pytest.raises(OSError, match=str(locks / str(port))), web_port(port):
        pass
    assert (locks / "victim").read_text() == "kept"
    (locks / str(port)).unlink()
    (locks / str(port)).hardlink_to(locks / "victim")
    with web_port(port):
        assert (locks / "victim").read_text() == "kept"


def test_folder_of_another_user_is_refused(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:
        os.chown(locks, 65534, 65534)
    else:
        other = os.getuid() + 1
        locks = locks.rename(locks.with_name(f"paceline-ports-{other}"))
        monkeypatch.setattr(os, "getuid", lambda: other)
    port = any_free()
    with pytest.raises(InstanceError, match=f"{locks} belongs to another user"), web_port(port):
        pass
    assert list(locks.iterdir()) == []
