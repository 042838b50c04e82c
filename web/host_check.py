"""Refuse Host headers outside a list of allowed names with 421.

This protects a server without keys from DNS rebinding. An address is always allowed: it cannot be rebound.
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from flask import Flask, request
from werkzeug.exceptions import MisdirectedRequest
from werkzeug.sansio.utils import host_is_trusted

from app.config import Settings

LOOPBACK = ".localhost"  # and all below it: browsers resolve these to this machine alone (RFC 6761)


def install(app: Flask, settings: Settings, own: Sequence[str]) -> None:
    """Refuse names other than loopback's, the settings' and the process' `own`.

    With keys in use, check only if the settings name hosts.
    """
    if settings.keys is not None and not settings.hosts:
        return
    names = [LOOPBACK, *settings.hosts, *own]

    @app.before_request
    def check() -> None:
        host = request.environ.get("HTTP_HOST")  # browsers always send it
        if host is not None and not _is_known(host.lower(), names):
            raise MisdirectedRequest("the Host header names no host of this server; PACELINE_HOSTS lists its names")


def _is_known(host: str, names: list[str]) -> bool:
    return host_is_trusted(host, names) or (host_is_trusted(host) and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return True
