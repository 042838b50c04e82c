"""Run and inspect an instance (`up`, `down`, `status`, `doctor`), and start the commands that are modules."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from app.config import FILE_VARIABLE, IS_CLONE, ROOT, THREAD_ENVIRONMENT, Settings, find_file
from app.errors import InstanceError, InvalidSettings, validation_message
from app.local.doctor import Level, examine
from app.local.health import RATE_S, Health, check
from app.local.instance import DEFAULT, Instance, State, find, running
from app.local.ports import is_loopback
from app.local.progress_line import ProgressLine
from app.local.up import READY, detach, serve, stop
from app.local.vllm_environment import vllm_python
from app.redis_url import without_password

Run = Callable[[argparse.Namespace, Settings], int]
Commands = argparse._SubParsersAction  # type of add_subparsers(); argparse has no public name for it

NOT_READY, NOT_RUNNING = 1, 3
MODULES = {
    "test": ("pytest", "run the tests (--quick: those that need no process and no model); arguments go to pytest"),
    "bench": ("bench", "measure; `bench --help` names what else it measures"),
    "lab": ("lab", "run an experiment, in a clone only; `lab --help` names them"),
    "chaos": ("bench.chaos.run", "break a deployment in every way while it serves, and look whether all was well"),
    "train": ("training.distill", "train a drafter; arguments go to training.distill"),
    "fit-pruning": ("training.early_exit.run", "fit the rank test of early exit to a target"),
}
IN_CLONES = {"test", "lab"}  # their files are not installed
# Whole files to each process, in the order of tests/conftest.py; many wait, so that two cores carry three. A later flag
# beats an earlier one.
DEFAULTS = {"test": ("-n3", "--dist=loadfile", "--no-loadscope-reorder")}
FLAGS = {"test": {"--quick": ("-m", "unit and not extended")}}  # a flag of ours, and the module's own for it
UP_TEXT = """\
Start Redis, the workers and the web server, and print the URL when everything answers. Ctrl-C stops it all;
with -d it runs on in the background until `paceline down`. The first start also fetches the model and compiles the
kernels.

Several instances can run at once. Without --instance the one called "default" is meant. If that runs already,
`up` says where and is content; unless --port asks for another port: then a second instance, named after the
port, is started beside it.
"""
PLAN_METAVAR, PLAN_HELP = "NAME|FILE", "how to speculate: a plan, or a TOML file that changes one; else PACELINE_PLAN"
INSTANCE_HELP = "which instance; needed only if several run and none of them is the default one"


def add_commands(commands: "Commands[argparse.ArgumentParser]") -> None:
    up = _command(commands, "up", _up, "start everything and print the URL", UP_TEXT)
    up.add_argument("model", nargs="?", metavar="MODEL", help="the target, as PACELINE_MODEL names it")
    up.add_argument("--drafter", action="append", metavar="D", help="as PACELINE_DRAFTERS names one; may be repeated")
    up.add_argument("--served-model-name", metavar="NAME", help="that clients give the target")
    up.add_argument("--host", metavar="ADDRESS", help="to bind to; else PACELINE_HOST, or 127.0.0.1: this machine only")
    up.add_argument("--api-key-file", metavar="FILE", help="keys that `paceline keys` made; then each call needs one")
    up.add_argument("--insecure", action="store_true", help="let others reach the server without keys")
    up.add_argument("--port", type=_port, help="of the web server; without it 8000 or the next free one")
    up.add_argument("-d", "--detach", action="store_true", help="return once all is ready, and leave it running")
    up.add_argument("--instance", metavar="NAME", help="name of this instance")
    up.add_argument("--plan", metavar=PLAN_METAVAR, help=PLAN_HELP)
    up.add_argument("--engine", choices=("paceline", "vllm"), help="what runs the target; else PACELINE_ENGINE")
    up.add_argument("--nodes", action="store_true", help="a process for each drafter, whose drafts one fuser merges")
    up.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    up.add_argument("--parent", type=int, help=argparse.SUPPRESS)  # a process, whose death ends the instance
    down = _command(commands, "down", _down, "stop a running instance")
    down.add_argument("--instance", metavar="NAME", help=INSTANCE_HELP)
    down.add_argument("--all", action="store_true", help="every instance of this installation")
    status = _command(commands, "status", _status, "show what runs, its load and memory, and whether it is well")
    status.add_argument("--instance", metavar="NAME", help=INSTANCE_HELP)
    shape = status.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object, with the password of Redis")
    shape.add_argument("--redis-url", action="store_true", help="print the URL of Redis alone, with its password")
    doctor = _command(commands, "doctor", _doctor, "say what is wrong with this installation")
    doctor.add_argument("--instance", metavar="NAME", help=INSTANCE_HELP)
    for name, (_, text) in MODULES.items():
        commands.add_parser(name, help=text, add_help=False)


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Run `python -m <module> ARGS` for one of MODULES, which parse their own flags.

    It runs in the root folder; training runs in the user's folder, since it reads and writes the user's paths.
    """
    Settings.from_env()  # so that a wrong one is reported in a sentence, not in a traceback
    if name in IN_CLONES and not IS_CLONE:
        raise InstanceError(f"an installed package does not have `paceline {name}`: run `./paceline {name}` in a clone")
    os.environ.update({**THREAD_ENVIRONMENT, **os.environ})
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ[FILE_VARIABLE] = str(find_file(os.environ) or os.devnull)  # the search depends on the folder
    # -P: modules in that folder must not be imported
    flags = FLAGS.get(name, {})
    words = [word for argument in arguments for word in flags.get(argument, (argument,))]
    command = [sys.executable, "-P", "-m", MODULES[name][0], *DEFAULTS.get(name, ()), *words]
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return subprocess.call(command, cwd=None if MODULES[name][0].startswith("training") else ROOT)


def _command(
    commands: "Commands[argparse.ArgumentParser]",
    name: str,
    run: Run,
    text: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=description or text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError("the port must be a number from 1 to 65535")
    return int(text)


def _up(arguments: argparse.Namespace, settings: Settings) -> int:
    instance = Instance(settings.state, _name_for(arguments, settings))
    state = instance.running()
    if state is not None:
        return _already(instance, state, arguments.port)
    given = {
        "model": arguments.model,
        "drafters": arguments.drafter and tuple(arguments.drafter),
        "served_name": arguments.served_model_name,
        "host": arguments.host,
        "keys": arguments.api_key_file,
        "engine": arguments.engine,
        "placement": "nodes" if arguments.nodes else None,
    }
    settings = _changed(settings, {name: value for name, value in given.items() if value is not None})
    if not (is_loopback(settings.host) or settings.keys or arguments.insecure):
        raise InstanceError(
            f"all who reach {settings.host} could generate: make keys (`paceline keys add NAME`) and name their file "
            "by --api-key-file, or allow it by --insecure"
        )
    progress = ProgressLine()
    if settings.engine == "vllm" and settings.vllm_python is None:
        settings = settings.changed(vllm_python=vllm_python(settings.home, progress))
    if arguments.detach:
        state = detach(settings, instance, arguments.port, progress)
        progress.end()
        print(state.url)
        return 0

    def ready() -> None:
        progress.end()
        if (now := instance.running()) is not None:
            is_child = arguments.ready_fd or arguments.parent
            print(f"Paceline is ready at {now.url}" + ("" if is_child else "  (Ctrl-C stops it)"))
        sys.stdout.flush()
        if arguments.ready_fd is not None:
            os.write(arguments.ready_fd, READY)
            os.close(arguments.ready_fd)

    serve(settings, instance, arguments.port, progress, ready, parent=arguments.parent)
    return 0


def _changed(settings: Settings, given: dict[str, Any]) -> Settings:
    try:
        return settings.changed(**given)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise InvalidSettings(f"{wrong['loc'][0]}: {validation_message(wrong)}") from error


def _name_for(arguments: argparse.Namespace, settings: Settings) -> str:
    if arguments.instance is not None:
        return str(arguments.instance)
    state = Instance(settings.state).running()
    beside = state is not None and arguments.port is not None and not state.url.endswith(f":{arguments.port}")
    return f"port-{arguments.port}" if beside else DEFAULT


def _already(instance: Instance, state: State, port: int | None) -> int:
    if port is not None and not state.url.endswith(f":{port}"):
        raise InstanceError(f"instance {instance.name!r} already runs, at {state.url}; stop it or name another")
    if not state.ready:
        raise InstanceError(f"instance {instance.name!r} is still starting; `paceline status` shows how far it is")
    print(f"already running: {state.url}")
    return 0


def _down(arguments: argparse.Namespace, settings: Settings) -> int:
    names = list(running(settings.state)) if arguments.all else []
    meant = [Instance(settings.state, name) for name in names] or [find(settings.state, arguments.instance)[0]]
    stopped = [instance.name for instance in meant if stop(instance)]
    print(f"stopped: {', '.join(stopped)}" if stopped else "not running")
    if others := list(running(settings.state)):
        print(f"still running: {', '.join(others)}")
    return 0


def _status(arguments: argparse.Namespace, settings: Settings) -> int:
    instance, state = find(settings.state, arguments.instance)
    if arguments.redis_url:
        if state is None:
            print(f"{instance.name}: not running", file=sys.stderr)
            return NOT_RUNNING
        print(state.redis_url)
        return 0
    health = check(instance.name, state, settings.lease_s)
    if arguments.json:
        print(health.model_dump_json(indent=1))
    else:
        _print_health(health, settings.queue)
    if state is None:
        return NOT_RUNNING
    return 0 if health.ready else NOT_READY


def _print_health(health: Health, queue: str) -> None:
    if health.url is None:
        print(f"{health.instance}: not running")
        return
    up = "" if health.up_s is None else f", up {timedelta(seconds=int(health.up_s))}"
    print(f"{health.instance}: {'ready' if health.ready else 'not ready'} at {health.url}{up}")
    if health.model is not None:
        print(f"  model {health.model}, plan {health.plan or 'not known yet'}")
    if (load := health.load) is not None:
        right = "" if load.acceptance is None else f", {load.acceptance:.0%} of draft tokens right"
        print(f"  requests: {load.running} running, {load.waiting} waiting, {load.done} done")
        print(f"  {load.tokens_per_s} tokens/s in the last {RATE_S} s, {load.tokens} tokens in all{right}")
    print(f"  Redis: {without_password(health.redis_url or '')}, tasks go to its queue {queue!r}")
    for role, pids in health.processes.items():
        memory = f"  {size / 2**20:.0f} MiB" if (size := health.memory_bytes.get(role)) else ""
        print(f"  {role:<8}{', '.join(map(str, pids)) or '-'}{memory}")
    drafters = {name: form for node in health.nodes.values() for name, form in node.get("weights", {}).items()}
    for name, form in sorted(drafters.items()):
        print(f"  drafter {name!r}: weights {form!r}")
    if any(health.audits.values()):
        print(f"  audits: {', '.join(f'{count} {result}' for result, count in health.audits.items())}")
    for problem in health.problems:
        print(f"  ! {problem}")


def _doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    findings = examine(settings, find(settings.state, arguments.instance)[0])
    for finding in findings:
        print(finding)
    return 1 if any(finding.level is Level.FAIL for finding in findings) else 0
