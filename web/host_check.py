"""Check the Host header against a list of allowed names; refuse others with 421.

This protects a server without keys from DNS rebinding, where a page's host name resolves to this machine. An address is
always allowed: no page can have it as its origin and come from elsewhere.
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

    If keys are in use, check only if the settings name hosts.
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
