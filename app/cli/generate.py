"""`paceline generate`: make a request from flags, print its text or result on standard output."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from app.cli.config import bare_type
from app.cli.run import PLAN_HELP, PLAN_METAVAR
from app.config import THREAD_ENVIRONMENT, Settings
from app.engine.weights.resolve import resolve
from app.errors import InstanceError, InvalidRequest, validation_message
from app.local.client import OnText
from app.local.client import generate as generate_remotely
from app.local.instance import find
from app.local.progress_line import ProgressLine
from app.messages import Result, Status
from app.request import GenerateRequest


def add_generate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "generate text: with the running instance, or in this process if none runs"
    parser = commands.add_parser("generate", help=text, description=text)
    parser.set_defaults(run=_run)
    parser.add_argument("prompt", nargs="?", help="the prompt; - reads it from standard input")
    parser.add_argument("--messages-file", type=Path, metavar="FILE", help='JSON: [{"role": ..., "content": ...}, ...]')
    for name, field in GenerateRequest.model_fields.items():
        if (options := _flag(field)) is not None:
            parser.add_argument("--" + name.replace("_", "-"), **options)
    parser.add_argument("--json-schema", type=Path, metavar="FILE", help="the answer is JSON of this schema")
    parser.add_argument("--no-speculation", action="store_true", help="slower, and the same text")
    parser.add_argument("--max-draft-tokens", type=int, metavar="N", help="draft tokens verified a round, at most")
    parser.add_argument("--drafters", metavar="NAMES", help="only these drafters, with commas between")
    parser.add_argument("--plan", metavar=PLAN_METAVAR, help=f"{PLAN_HELP}; only if no instance runs")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--instance", metavar="NAME", help="a running instance; else the default one, or the only one")


def _flag(field: FieldInfo) -> dict[str, Any] | None:
    """Describe the flag of a request's field; None for a field that needs more than numbers or words.

    An absent flag is None, so that the field keeps its default.
    """
    kind, help_ = bare_type(field.annotation), (field.description or "").replace("%", "%%")
    options = {"default": None, "help": help_}
    if kind is bool and not field.default:
        return {"action": "store_true", **options}
    if kind in (int, float):
        if field.default is not None:
            options["help"] = f"{help_}; by default {field.default}"
        return {"type": kind, "metavar": "N" if kind is int else "X", **options}
    if get_origin(kind) is tuple and bare_type(get_args(kind)[0]) is str:
        return {"action": "append", "metavar": "TEXT", **options, "help": f"{help_}; may be repeated"}
    return None


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    request = _request(arguments)
    progress = ProgressLine()

    def show(text: str) -> None:
        progress.end()
        print(text, end="", flush=True)

    on_text = None if arguments.json else show
    _, state = find(settings.state, arguments.instance)
    if arguments.instance is not None and (state is None or not state.ready):
        raise InstanceError(f"instance {arguments.instance!r} is not running, or not ready yet")
    if state is not None and state.ready:
        if arguments.plan is not None:
            raise InstanceError(f"the running instance at {state.url} has a plan; stop it to generate with another")
        result = generate_remotely(state.url, request, on_text, settings.api_key)
    else:
        result = _generate_here(request, settings, on_text, progress)
    return _show(result, arguments.json)


def _request(arguments: argparse.Namespace) -> GenerateRequest:
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    values = {name: value for name, value in given.items() if name in GenerateRequest.model_fields}
    if values.get("prompt") == "-":
        values["prompt"] = sys.stdin.read()
    if arguments.messages_file is not None:
        values["messages"] = _json_of(arguments.messages_file, "messages-file")
    if arguments.json_schema is not None:
        schema = _json_of(arguments.json_schema, "json-schema")
        values["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    values["speculation"] = {"enabled": not arguments.no_speculation}
    if arguments.max_draft_tokens is not None:
        values["speculation"]["max_draft_tokens"] = arguments.max_draft_tokens
    if arguments.drafters is not None:
        values["speculation"]["drafters"] = [name for name in arguments.drafters.split(",") if name]
    try:
        return GenerateRequest.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "prompt"
        raise InvalidRequest(field, validation_message(first)) from error


def _json_of(path: Path, flag: str) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(flag, str(error)) from error


def _generate_here(
    request: GenerateRequest, settings: Settings, on_text: OnText | None, progress: ProgressLine
) -> Result:
    os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # read when torch is loaded, which is below
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers' own bars would mix with the text
    folder = resolve(settings.model, settings.home, progress)
    progress("loading the model")
    # Loads torch; a command that talks to a running instance must start without.
    from app.local.one_shot import generate

    try:
        return generate(request, settings.model_copy(update={"model": str(folder)}), on_text)
    finally:
        progress.end()  # if no text has done so


def _summary(result: Result) -> str:
    tokens, timing, drafts = result.usage.completion_tokens, result.timing, result.speculation
    decoding_s = timing.total_s - (timing.ttft_s or 0.0)
    pace = f", {(tokens - 1) / decoding_s:.1f} tokens/s" if tokens > 1 and decoding_s > 0.0 else ""
    return f"[{tokens} tokens{pace}, {drafts.accepted} of {drafts.drafted} draft tokens right, {result.finish_reason}]"


def _show(result: Result, as_json: bool) -> int:
    if as_json:
        print(result.model_dump_json(indent=1))
    else:
        print(end="\n" if result.text else "")
        print(_summary(result), file=sys.stderr)
    if result.status is Status.FAILED:
        print(f"paceline: {result.error or 'the request failed'}", file=sys.stderr)
        return 1
    return 0
