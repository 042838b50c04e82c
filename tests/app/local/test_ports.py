"""Test the ports of instances that start side by side."""

import socket

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
