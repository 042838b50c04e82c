"""Test that Celery's transport drops items that are no task and survives a failing Redis."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import pytest
import redis
from celery import Celery
from kombu import Connection, Consumer, Message, Queue

from workers.celery_app import make_celery
from workers.deployment import Deployment

ODD = ("", "{", "null", "[]", '{"a": 1}', b"\xff", "9" * 50, "[" * 100_000, '{"body": "x", "properties": {}}')


def test_an_item_that_is_no_task_is_dropped_and_the_next_one_read(
    lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    seen: list[object] = []
    app = make_celery(lone_deployment.settings)
    queue = Queue("q")

    def read(message: Message) -> None:
        seen.append(message.payload)
        message.ack()

    connection: Connection
    with app.connection_for_read() as connection, Consumer(connection, queues=[queue], on_message=read):
        for item in ODD:
            redis_client.lpush("q", item)
            connection.Producer().publish({"is": "sound"}, routing_key="q", declare=[queue], serializer="json")
            _drain(connection)
            _drain(connection)
    assert seen == [{"is": "sound"}] * len(ODD)
    assert redis_client.llen("q") == 0
    app.close()


def test_a_redis_that_cannot_write_is_treated_as_a_broken_connection(
    lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    """Celery's worker then connects again until writes succeed; any other error would end it."""
    app = make_celery(lone_deployment.settings)
    connection: Connection
    with app.connection_for_read() as connection, Consumer(connection, queues=[Queue("q")], on_message=print):
        redis_client.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(connection.connection_errors, match="read only|replica"):
                for _ in range(5):
                    _drain(connection)
        finally:
            redis_client.replicaof("NO", "ONE")
    app.close()


@pytest.mark.parametrize("silent_ms", [450, 1000])
@pytest.mark.parametrize("end", [Message.ack, Message.reject])
def test_a_redis_silent_at_an_ack_leaves_the_worker_free_for_more(
    lone_deployment: Deployment, redis_client: redis.Redis, silent_ms: int, end: Callable[[Message], None]
) -> None:
    """Celery only logs a failed ack; an unreleased message would be the last that the worker took."""
    app = make_celery(lone_deployment.settings)
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "socket_timeout": 0.3}
    with _taking_one_at_a_time(app) as (connection, found):
        for number in range(2):
            connection.Producer().publish({"number": number}, routing_key="q", serializer="json")
        _drain(connection)
        _drain(connection)
        assert len(found) == 1  # no more than it may hold
        redis_client.client_pause(silent_ms)
        with pytest.raises(redis.TimeoutError) if silent_ms > 600 else nullcontext():  # it is told twice
            end(found[0])
        time.sleep(silent_ms / 1000)
        _drain(connection)
        assert [message.payload["number"] for message in found] == [0, 1]
        end(found[1])
    app.close()


def test_an_ack_that_redis_cannot_write_leaves_the_worker_free(
    lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    app = make_celery(lone_deployment.settings)
    with _taking_one_at_a_time(app) as (connection, found):
        connection.Producer().publish({}, routing_key="q", serializer="json")
        _drain(connection)
        redis_client.replicaof("127.0.0.1", "1")
        with pytest.raises(redis.ResponseError):
            found[0].ack()
        redis_client.replicaof("NO", "ONE")
        connection.Producer().publish({}, routing_key="q", serializer="json")
        _drain(connection)
        assert len(found) == 2
    app.close()


def test_a_message_is_delivered_again_once_its_process_is_gone_and_not_before(
    lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    app = make_celery(lone_deployment.settings)
    index = app.conf.broker_transport_options["unacked_index_key"]

    def pass_time(connection: Connection) -> None:
        redis_client.zadd(index, dict.fromkeys(redis_client.zrange(index, 0, -1), 1.0))
        connection.transport.cycle.maybe_restore_messages()

    with _taking_one_at_a_time(app) as (holder, found), _taking_one_at_a_time(app) as (other, _):
        holder.Producer().publish({}, routing_key="q", serializer="json")
        _drain(holder)
        pass_time(holder)
        assert (len(found), redis_client.llen("q")) == (1, 0)
        pass_time(other)
        assert redis_client.llen("q") == 1
    app.close()


def test_a_task_whose_reader_fails_leaves_the_worker_free(
    lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    """Celery's reader raises TypeError for an `eta` that is a number, after the message was taken."""
    app = make_celery(lone_deployment.settings)
    seen: list[int] = []

    def read(message: Message) -> None:
        seen.append(1 + message.payload["eta"])
        message.ack()

    connection: Connection
    with (
        app.connection_for_read() as connection,
        Consumer(connection, queues=[Queue("q")], on_message=read) as consumer,
    ):
        consumer.qos(prefetch_count=1)
        for eta in ("soon", 1):
            connection.Producer().publish({"eta": eta}, routing_key="q", serializer="json")
        _drain(connection)
        _drain(connection)
    assert seen == [2]
    assert redis_client.hlen(f"{lone_deployment.settings.namespace}.unacked") == 0
    app.close()


@contextmanager
def _taking_one_at_a_time(app: Celery) -> Iterator[tuple[Connection, list[Message]]]:
    """Make a connection that takes a message of queue q once the one before is released; give those it took."""
    found: list[Message] = []
    connection: Connection
    with (
        app.connection_for_read() as connection,
        Consumer(connection, queues=[Queue("q")], on_message=found.append) as consumer,
    ):
        consumer.qos(prefetch_count=1)
        yield connection, found


def _drain(connection: Connection) -> None:
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.2)
