"""Make the Celery application, and name its tasks and queues.

One Redis for broker and results, JSON only, one task at a time. `workers/bootstrap.py` starts the Celery worker,
`workers/roles/beat.py` Celery's scheduler.
"""

from typing import Any
from urllib.parse import quote

from celery import Celery, Task

from app.config import Settings
from app.errors import StoreUnavailable
from app.redis_url import RedisUrl
from app.store.connect import KEEPALIVE
from app.store.tasks import NORMAL, PRIORITIES

ATTEND = "paceline.attend"
GENERATE = "paceline.generate"
STEER = "paceline.steer"
STEER_EVERY_S = 1.0
DOORBELL_TTL_S = 10.0
DEAD_S = 5.0  # a connection without an answer for so long counts as dead
# Celery only reads the connection of the doorbells, so it must notice a dead one by itself.
_ALERT = {
    "socket_timeout": DEAD_S,
    "socket_connect_timeout": DEAD_S,
    "health_check_interval": DEAD_S,
    "socket_keepalive": True,
    "socket_keepalive_options": KEEPALIVE,
}
VISIBILITY_S = 10.0  # a task that no process has held for so long (workers/transport.py) is delivered again


class _Task(Task):
    Request = "workers.sound_request:SoundRequest"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Take `self` among the keyword arguments, for which Celery's own raises TypeError."""
        return self.run(*args, **kwargs)


def make_celery(settings: Settings) -> Celery:
    """Raises StoreUnavailable without a URL."""
    if settings.redis_url is None:
        raise StoreUnavailable("PACELINE_REDIS_URL is not set: set it, or let `paceline up` start a Redis")
    where = RedisUrl.parse(settings.redis_url)
    broker, backend = _celery_urls(where)
    app = Celery("paceline", broker=broker, backend=backend, task_cls=_Task)
    sentinels = _sentinels(where)
    app.conf.update(
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        task_default_queue=settings.queue,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_transport="workers.transport:SentinelTransport" if sentinels else "workers.transport:Transport",
        broker_transport_options={**_unacked(settings), **_ALERT, **sentinels},
        result_backend_transport_options=sentinels,
        broker_use_ssl=_tls(where),
        redis_backend_use_ssl=_tls(where),
        redis_socket_timeout=DEAD_S,  # the results'
        redis_socket_connect_timeout=DEAD_S,
        result_expires=int(settings.request_ttl_s),
        beat_schedule={
            "steer": {
                "task": STEER,
                "schedule": STEER_EVERY_S,
                "options": {
                    "queue": control_queue(settings),
                    "expires": STEER_EVERY_S * 2,
                    "ignore_result": True,
                },
            }
        },
    )
    return app


def _celery_urls(where: RedisUrl) -> tuple[str, str]:
    user, password = (quote(where.login.get(part, ""), safe="") for part in ("username", "password"))
    login = f"{user}:{password}@" if where.login else ""
    if where.socket:
        url = f"redis+socket://{login}{where.socket}?virtual_host={where.database}"
        return url, url
    places = [f"{login}{f'[{host}]' if ':' in host else host}:{port}/{where.database}" for host, port in where.servers]
    if where.service:  # our transport has the Sentinels from its options
        return f"redis://{places[0]}", ";".join(f"sentinel://{place}" for place in places)
    return f"redis://{places[0]}", f"{'redis' if where.tls is None else 'rediss'}://{places[0]}"


def _tls(where: RedisUrl) -> dict[str, Any] | None:
    return None if where.tls is None else {"ssl_cert_reqs": "required", **where.tls}


def _sentinels(where: RedisUrl) -> dict[str, Any]:
    if not where.service:
        return {}
    sockets = {"socket_timeout": DEAD_S, "socket_connect_timeout": DEAD_S}
    tls = {} if where.tls is None else {"ssl": True, **where.tls}
    asked = {**sockets, **tls, **where.sentinel_login}
    return {"sentinels": where.servers, "master_name": where.service, "sentinel_kwargs": asked}


def _unacked(settings: Settings) -> dict[str, object]:
    """Keep unacknowledged tasks apart from other applications' on the same Redis: ours return seconds after a kill,
    while theirs may run for hours.
    """
    namespace = settings.namespace
    return {
        "queue_order_strategy": "priority",  # queues in the order in which they are given
        "visibility_timeout": max(VISIBILITY_S, 2 * settings.lease_s),  # by then a dead process's lease has run out
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_key": f"{namespace}.unacked",
        "unacked_index_key": f"{namespace}.unacked_index",
        "unacked_mutex_key": f"{namespace}.unacked_mutex",
        "unacked_mutex_expire": 10,  # the longest that a worker killed while restoring blocks the others
    }


def control_queue(settings: Settings) -> str:
    return f"{settings.namespace}.control"


def public_queues(settings: Settings) -> dict[str, str]:
    return {name: settings.queue if name == NORMAL else f"{settings.queue}.{name}" for name in PRIORITIES}


def mailbox_queue(settings: Settings, mailbox: str) -> str:
    return control_queue(settings) if mailbox == "settle" else f"{settings.namespace}.{mailbox}"
