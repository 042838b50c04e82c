"""Start and stop an instance: Redis, then workers and web server, in the foreground or detached.

A detached instance is the same supervisor in its own session; a pipe reports that all is ready.
"""

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.api_keys import read_keys
from app.config import NO_FILE, ROOT, Settings, variable
from app.engine.weights.drafter_files import drafter_problem, drafters_problems
from app.engine.weights.resolve import (
    GGUF_SUFFIX,
    Progress,
    check_gguf,
    in_background,
    place_of,
    resolve,
    resolve_drafter,
)
from app.errors import InstanceError, ModelRefused, StoreUnavailable
from app.local.children import GRACE_S, Children, Service
from app.local.health import live, problems
from app.local.instance import Instance, ProcessId, State
from app.local.ports import reachable, web_port
from app.local.process_specs import namespace, services, settings_environment
from app.local.redis_server import embedded_redis, no_answer
from app.local.starting import Starting
from app.local.supervise import Stopped, Supervisor, supervising

log = logging.getLogger(__name__)
STOP_S = 3 * GRACE_S + 5.0  # three groups, one after the other
READY = b"ready\n"
SHIPPED = ROOT / "drafters"
Plan = Callable[[Settings, int], list[Service]]  # services to run, given the web server's port


def serve(
    settings: Settings,
    instance: Instance,
    port: int | None,
    progress: Progress,
    ready: Callable[[], None],
    plan: Plan = services,
    parent: int | None = None,
) -> None:
    """Run an instance until a signal or the death of its parent ends it.

    `ready` is called once, when all planned services answer.
    """
    _check_keys(settings)
    with instance.lock(), web_port(port, settings.host) as chosen:
        _end_left_over(instance)
        settings = settings.model_copy(update=_models(settings, progress))
        state = State(
            instance=instance.name,
            supervisor=_myself(),
            url=f"http://{reachable(settings.host)}:{chosen}",
            redis_url=settings.redis_url or "",
            namespace=namespace(settings, instance),
            model=settings.model_name,
            began_s=time.time(),
        )
        _Serving(settings, instance, state, progress).run(plan, chosen, ready, parent)


def detach(settings: Settings, instance: Instance, port: int | None, progress: Progress) -> State:
    """Run an instance in the background; return when it is ready. Raises InstanceError with its log's end."""
    if instance.running() is not None:
        raise InstanceError(f"instance {instance.name!r} is already running or starting")
    _check_keys(settings)
    models = _models(settings, progress)  # here, where the user sees the progress
    instance.logs.mkdir(parents=True, exist_ok=True)
    log = instance.logs / "supervisor.log"
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "app.cli.main", "up", "--instance", instance.name, "--ready-fd", str(writer)]
    command += ["--insecure"] + ([] if port is None else ["--port", str(port)])  # this process has checked it
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **NO_FILE, **_given(settings.model_copy(update=models))},
            cwd=ROOT,
            pass_fds=[writer],
            start_new_session=True,  # no terminal: neither its Ctrl-C nor its end reaches it
        )
    os.close(writer)
    return _await_ready(process, reader, instance, log, progress)


def stop(instance: Instance) -> bool:
    state = instance.running()
    if state is None:
        _end_left_over(instance)
        return False
    _end(state.supervisor, STOP_S)
    _end_left_over(instance)
    return True


def _models(settings: Settings, progress: Progress) -> dict[str, object]:
    """Return the settings of the models with folders in place of files and names. Raises ModelRefused.

    What is wrong is found in seconds, before the target is fetched, described or read.
    """
    place = place_of(settings)
    if place.suffix == GGUF_SUFFIX:
        check_gguf(place)
    drafters = _fitting(settings, settings.drafters, place)
    served_name = _served_name(settings, place)
    # Files are described in processes of their own, which take seconds.
    folders = {name: in_background(partial(resolve_drafter, name, settings.home, progress)) for name in drafters}
    target = resolve(settings.model, settings.home, progress, engine=settings.engine)
    drafters = _fitting(settings, drafters, target)  # what could not be compared before
    found = (folders[name].result() for name in drafters)
    names = (str(folder) if folder.parent != SHIPPED else folder.name for folder in found)
    return {"model": str(target), "served_name": served_name, "drafters": tuple(names)}


def _fitting(settings: Settings, drafters: tuple[str, ...], target: Path) -> tuple[str, ...]:
    """Leave out the plan's own drafters that do not fit the target; refuse those that the user named."""
    if "drafters" not in settings.model_fields_set and target.exists():
        wrong = {name: problem for name in drafters if (problem := drafter_problem(name, target))}
        if wrong:
            log.warning("the plan's drafters are left out: %s", "; ".join(wrong.values()))
        drafters = tuple(name for name in drafters if name not in wrong)
    if found := drafters_problems(settings.model_copy(update={"drafters": drafters}), target):
        raise ModelRefused("; ".join(found))
    return drafters


def _served_name(settings: Settings, target: Path) -> str:
    """Return what the caller named, not the folder that it was fetched or unpacked to; a GGUF file names itself."""
    if settings.served_name is None and target.suffix == GGUF_SUFFIX:
        from app.engine.weights.gguf_header import title  # with the library of GGUF, which most starts need not

        return title(target)
    return settings.model_name


def _check_keys(settings: Settings) -> None:
    if settings.keys is not None:
        read_keys(settings.keys)


class _Serving:
    def __init__(self, settings: Settings, instance: Instance, state: State, progress: Progress) -> None:
        self._settings = settings
        self._instance = instance
        self._state = state
        self._progress = progress
        self._children = Children(instance.logs, self._changed)

    def run(self, plan: Plan, port: int, ready: Callable[[], None], parent: int | None) -> None:
        self._instance.write(self._state)
        try:
            with supervising(self._children, parent) as supervisor:
                self._start_redis(supervisor)
                self._start_services(supervisor, plan, port)
                ready()
                supervisor.watch(self._live)
        except Stopped as stopped:
            raise KeyboardInterrupt from stopped  # before it was ready: nothing was served
        finally:
            self._instance.clear()

    def _start_redis(self, supervisor: Supervisor) -> None:
        if self._settings.redis_url is not None:
            if (silent := no_answer(self._settings.redis_url)) is not None:
                raise StoreUnavailable(silent)
            return
        self._progress("starting Redis")
        service, url = embedded_redis(self._instance)
        self._update(redis_url=url)
        supervisor.start([service], lambda: no_answer(url))

    def _start_services(self, supervisor: Supervisor, plan: Plan, port: int) -> None:
        self._progress("starting workers and web server")
        update = {"redis_url": self._state.redis_url, "namespace": self._state.namespace}
        wanted = plan(self._settings.model_copy(update=update), port)
        models = " ".join((self._settings.model, *self._settings.drafters))
        starting = Starting(wanted, self._instance.logs, self._instance.last_start_s(models))

        def problem() -> str | None:
            found = problems(self._state, self._settings.lease_s)
            if found:
                roles = dict.fromkeys(one.partition(":")[0] for one in found)  # a failed start reports the rest
                self._progress(starting.describe(roles))
            return "; ".join([*found, *starting.stages()]) if found else None

        supervisor.start(wanted, problem)
        self._instance.keep_start(models, starting.took_s())
        self._update(ready=True)

    def _live(self) -> dict[str, str] | None:
        with suppress(StoreUnavailable):
            nodes = live(self._state.redis_url, self._state.namespace, self._settings.lease_s)
            return {node.name: node.owner for node in nodes}
        return None

    def _changed(self, children: Children) -> None:
        self._update(processes=children.processes())

    def _update(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        self._instance.write(self._state)


def _await_ready(
    process: subprocess.Popen[bytes], reader: int, instance: Instance, log: Path, progress: Progress
) -> State:
    try:
        with os.fdopen(reader, "rb") as pipe:
            # It becomes readable when the supervisor closes its end, ready or dead.
            while not select.select([pipe], [], [], 0.2)[0]:
                progress(_last_line(log) or "starting in the background")
            report = pipe.read()
    except KeyboardInterrupt:
        process.terminate()
        process.wait(STOP_S)
        raise
    state = instance.running()
    if report == READY and state is not None:
        process.returncode = 0  # it runs on alone: no warning that it still runs
        return state
    process.wait(STOP_S)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
    raise InstanceError(f"instance {instance.name!r} did not start. Its log is {log} and ends:\n{tail}")


def _last_line(log: Path) -> str:
    return "".join(log.read_text(errors="replace").splitlines()[-1:])


def _given(settings: Settings) -> dict[str, str]:
    """Write the settings that were given, without defaults: `namespace` depends on the difference."""
    names = {variable(name) for name in settings.model_fields_set}
    return {name: value for name, value in settings_environment(settings).items() if name in names}


def _end_left_over(instance: Instance) -> None:
    """End the processes that a killed supervisor left. On Linux the kernel has done so already."""
    state = instance.read()
    if state is None or state.supervisor.alive() and state.supervisor.pid != os.getpid():
        return
    for processes in state.processes.values():
        for process in processes:
            _end(process, GRACE_S)
    instance.clear()


def _end(process: ProcessId, grace_s: float) -> None:
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, GRACE_S)):
        deadline = time.monotonic() + wait_s
        if process.alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        while process.alive() and time.monotonic() < deadline:
            time.sleep(0.02)


def _myself() -> ProcessId:
    identity = ProcessId.of(os.getpid())
    assert identity is not None
    return identity
