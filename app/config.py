"""Read the settings, once, from the environment and one TOML file.

`./paceline config` lists them (app/cli/config.py). Why not pydantic-settings: docs/decisions/0018.
"""

import json
import logging
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from app.errors import InvalidSettings
from app.plans import PARTS, PLANS, AnyPlan, Plan
from app.redis_url import checked, with_password
from app.variables import OTHERS

log = logging.getLogger(__name__)
PREFIX = "PACELINE_"
FILE_VARIABLE = "PACELINE_CONFIG"
NO_FILE = {FILE_VARIABLE: "/dev/null"}  # for processes that are given every setting in their environment
# What Kubernetes writes into every container about a service whose name begins with "paceline".
OF_KUBERNETES = re.compile(PREFIX + r"\w*(SERVICE_HOST|SERVICE_PORT|PORT_\d+_|PORT=\w+://)")


def home_of(environ: Mapping[str, str], variable: str, usual: str) -> Path:
    """Look up a folder of the XDG base directories; by their specification a relative path is ignored."""
    named = Path(environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / usual


def _without_int8(value: Any) -> Any:
    """Read the old name `int8` as `q8_0`."""
    if value == "int8":
        log.warning("weights are no longer rounded as int8 was: taking q8_0, ggml's blocks of 32")
        return "q8_0"
    return value


ROOT = Path(__file__).resolve().parent.parent
IS_CLONE = (ROOT / "pyproject.toml").is_file()  # else installed: files are written elsewhere
# Set before a process loads numpy or torch (docs/decisions/0002): threads that wait for the next
# operator spin for about a quarter of a millisecond, long enough for the gaps within a step, then
# sleep and leave the core to others. numpy's would spin for a hundred times as long after one small
# product, so it has none beside the caller's.
THREAD_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "100000",
    "KMP_BLOCKTIME": "1",  # milliseconds: the same for Intel's OpenMP, which vLLM's build for CPUs runs on
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
STATE = ROOT / ".paceline" if IS_CLONE else home_of(os.environ, "XDG_STATE_HOME", ".local/state") / "paceline"
UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
Host = Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$")]
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?)$")]
NONE = ("none", ("none",), ["none"])
OR_NONE = BeforeValidator(lambda names: () if names in NONE else names)
WeightsAs = Literal["stored", "float32", "q8_0", "q4_0"]
Activations = Literal["float32", "int8"]
KVDtype = Literal["float32", "float16"]
NO_INT8 = BeforeValidator(_without_int8)


def _json_object(text: str) -> str:
    try:
        if isinstance(json.loads(text), dict):
            return text
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from error
    raise ValueError('must be a JSON object, as {"enable_expert_parallel": true}')


def _drafters_of_plan(data: dict[str, Any]) -> tuple[str, ...]:
    plan = data.get("plan")  # absent where it is wrong, which is reported
    return plan.drafters if isinstance(plan, Plan) else ()


REMOVED = {  # once settings: the constant that took the place of each
    "active_ttl_s": "86400 (a day)",
    "attend_s": "20",
    "draft_weights": "the form of most expected tokens a second, which `paceline status` tells",
    "linger_s": "2",
    "max_readers": "256",
    "max_strikes": "5",
    "page_tokens": "16 (the least that the kernels take, so the least memory lost in a last page)",
    "spans": "none (the timelines of the latest requests are in Redis: `paceline bench timeline`)",
    "traced_requests": "64 (more than the dashboard lists)",
}


def _address(text: str) -> str:
    try:
        return "127.0.0.1" if text == "localhost" else str(ip_address(text))
    except ValueError:
        raise ValueError("must be an address, as 0.0.0.0, or localhost") from None


class Settings(BaseModel):
    """All settings.

    `PACELINE_<NAME>` in the environment sets `<name>`, and so does the key `<name>` of the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: UserPath = Field(
        Path.home() / ".cache" / "paceline", description="fetched models, what is known of models, packed weights"
    )
    state: UserPath = Field(STATE, description="pids, logs and Redis data of `up`, a folder an instance")
    redis_url: Annotated[str, AfterValidator(checked)] | None = Field(
        None,
        description="broker, results and state: redis://, by TLS rediss://, unix://, or by Sentinels "
        "redis+sentinel://HOST,HOST/NAME (app/redis_url.py); `up` starts its own when absent",
    )
    redis_password: str | None = Field(None, description="of Redis, where its URL has none")
    queue: str = Field(
        "celery",
        pattern=r"^[A-Za-z0-9_.-]{1,80}$",
        description="of paceline.generate; with .high and .low behind it, others",
    )
    namespace: str = Field("paceline", pattern=r"^[A-Za-z0-9_-]{1,40}$", description="prefix of every Redis key")
    model: str = Field(
        "smollm2-135m", description="the target: a known name, a model folder, a GGUF file, or a hub's id as OWNER/NAME"
    )
    served_name: str | None = Field(
        None,
        pattern=r"^[\w./:-]{1,200}$",
        description="name that clients give the target; absent: the last part of PACELINE_MODEL, "
        "or for `up` a GGUF file's own",
    )
    weights: Annotated[WeightsAs, NO_INT8] = Field(
        "stored",
        description="of the target: as its file has them, or expanded or rounded when loaded: another target, "
        "but for floats that stay floats",
    )
    activations: Activations = Field(
        "float32", description="of the target's products; int8 rounds them, too: faster, a target of its own"
    )
    kv_dtype: KVDtype = Field(
        "float32", description="of a CPU's cache of keys and values; float16: half the memory, a target of its own"
    )
    engine: Literal["paceline", "vllm"] = Field("paceline", description="what runs the target; vllm: see docs/using.md")
    vllm_python: UserPath | None = Field(
        None, description="a Python that has vLLM, for verifiers of PACELINE_ENGINE=vllm"
    )
    vllm_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="of vLLM's weights and products; auto: float32 on a CPU with weights that are not quantised, "
        "else as the model's files",
    )
    vllm_arguments: Annotated[str, AfterValidator(_json_object)] = Field(
        "{}", description="more of vLLM's own, a JSON object; see docs/using.md"
    )
    tensor_parallel: int = Field(1, ge=1, description="devices that divide each layer, with PACELINE_ENGINE=vllm")
    pipeline_parallel: int = Field(1, ge=1, description="devices that divide the layers, with PACELINE_ENGINE=vllm")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="of the target; auto: a GPU if there is one")
    gpu_dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="of a GPU's weights and cache")
    gpu_exact: bool = Field(False, description="on a GPU, bits that depend on nothing beside a row; slower, no trees")
    plan: AnyPlan = Field(
        PLANS["pace"],
        description="how to speculate (app/plans.py): pace is Paceline's own; cosine, faser, specinfer are papers'; "
        "vanilla is a chain of one drafter, off is none; or a TOML file that changes parts of a plan",
    )
    drafters: Annotated[tuple[str, ...], OR_NONE] = Field(
        default_factory=_drafters_of_plan,
        description="model drafters: in drafters/, folders, GGUF files, or none; absent: as the plan has it",
    )
    phrases: str = Field("smol-phrases", description="store of a target's text to look up in: in drafters/, or none")
    node: str | None = Field(None, description="name of this worker's node, e.g. verify-1; required by workers")
    machine: str | None = Field(
        None, description="name of the cores that a worker takes: same name, same cores; absent: the host's name"
    )

    keys: UserPath | None = Field(None, description="file of hashed API keys; absent: none is needed (`paceline keys`)")
    api_key: SecretStr | None = Field(None, description="key that `generate` shows to a running instance")
    host: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1", description="address that `up` binds the web server to; 0.0.0.0: all of this machine"
    )
    origins: Annotated[tuple[Origin, ...], OR_NONE] = Field(
        (), description="sites whose pages may call the APIs, as https://chat.example.org; *: all"
    )
    hosts: Annotated[tuple[Host, ...], OR_NONE] = Field(
        (),
        description="names the web server answers to, beside localhost and addresses; .NAME: all below it",
    )
    open_metrics: bool = Field(False, description="/metrics wants no key though the rest does")
    drain_s: float = Field(0.0, ge=0.0, description="a web server that is to stop ends its present calls first")
    max_prompt_tokens: int = Field(8000, ge=1, description="a longer prompt is refused")
    max_tokens: int = Field(4096, ge=1, description="cap on a request's max_tokens")
    max_active_requests: int = Field(256, ge=1, description="admitted and not ended; beyond it QueueFull")
    request_ttl_s: float = Field(3600.0, ge=1.0, description="how long an ended request can be read")
    durable: bool = Field(
        False,
        description="requests are on Redis' disk before they are accepted, up to a second later",
    )

    lease_s: float = Field(2.0, gt=0.1, description="a worker silent for longer is taken for dead")

    draft_device: Literal["cpu", "cuda"] = Field("cpu", description="of model drafters; cuda: in PACELINE_GPU_DTYPE")
    verify_threads: int = Field(2, ge=1, description="CPU threads of a verifier")
    draft_threads: int = Field(2, ge=1, description="CPU threads of a drafter")
    kv_bytes: int | None = Field(None, ge=2**20, description="a verifier's KV cache; absent: a part of what is free")
    audit_share: float = Field(0.0, ge=0.0, le=1.0, description="part of ended requests that idle verifiers replay")
    prefix_cache: bool = Field(True, description="requests of a tenant that begin alike use what one of them computed")
    max_sequences: int | None = Field(
        None, ge=1, description="sequences a verifier runs at once, the rest wait; absent: 64, on a GPU 256"
    )
    steer_log: UserPath | None = Field(
        None, description="control appends every tick of the scheduler here, as JSON lines"
    )
    otlp_url: str | None = Field(
        None, pattern=r"^https?://", description="OpenTelemetry's collector, e.g. http://host:4318; absent: no traces"
    )
    otlp_part: float = Field(1.0, ge=0.0, le=1.0, description="of the requests, the part that is traced")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least severe lines of a log")
    log_format: Literal["text", "json"] = Field("text", description="of each process's log; json: an object a line")

    def changed(self, **changes: Any) -> Self:
        """Return the settings with these changes, parts of the plan among them. Raises ValidationError."""
        own = {name: value for name, value in changes.items() if name in type(self).model_fields}
        parts = {name: value for name, value in changes.items() if name not in own}
        given = {name: getattr(self, name) for name in self.model_fields_set} | own
        found = type(self).model_validate(given)
        return type(self).model_validate({**given, "plan": found.plan.changed(**parts)}) if parts else found

    @property
    def model_name(self) -> str:
        """Return the name that clients give the target."""
        return self.served_name or Path(self.model).name

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Build from PACELINE_* variables and, for those absent or empty, from the file.

        Another `environ` than this process's own names the file by PACELINE_CONFIG, or there is none. Raises
        InvalidSettings, which names the variable, or the file and its key, also for one that does not exist.
        """
        file = find_file(os.environ) if environ is None else named_file(environ)
        environ = os.environ if environ is None else environ
        if unknown := list(_unknown(environ, [*map(variable, cls.model_fields), *(name for _, name, *_ in OTHERS)])):
            raise InvalidSettings("\n".join(unknown))
        in_file = {} if file is None else read_file(file, cls.model_fields)
        given = cls.given(environ)
        try:
            return cls.model_validate({**in_file, **given})._with_password()
        except ValidationError as error:
            lines = []
            for wrong in error.errors(include_url=False, include_input=False):
                if wrong["type"] == "default_factory_not_called":  # of drafters, where the plan is wrong
                    continue
                name = str(wrong["loc"][0])
                place = variable(name) if name in given or file is None else f"{file}: {name}"
                lines.append(f"{place}: {wrong['msg']}")
            raise InvalidSettings("\n".join(lines)) from error

    def _with_password(self) -> Self:
        if self.redis_url is None or self.redis_password is None:
            return self
        return self.model_copy(update={"redis_url": with_password(self.redis_url, self.redis_password)})

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> dict[str, object]:
        """Collect the settings of the environment by name; commas separate the parts of a list."""
        found: dict[str, object] = {}
        for name, field in cls.model_fields.items():
            if text := environ.get(variable(name)):
                is_list = get_origin(field.annotation) is tuple
                found[name] = tuple(part for part in text.split(",") if part) if is_list else text
        return found


def variable(name: str) -> str:
    return PREFIX + name.upper()


def as_text(value: object) -> str:
    """Write a setting's value so that `from_env` reads the same one."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"  # an empty variable would mean the default
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_file(environ: Mapping[str, str]) -> Path | None:
    """Choose the file to read: the one that the environment names, else the first usual one that exists."""
    if (named := named_file(environ)) is not None:
        return named
    places = (Path("paceline.toml"), home_of(environ, "XDG_CONFIG_HOME", ".config") / "paceline" / "config.toml")
    return next((place.absolute() for place in places if place.is_file()), None)


def named_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(FILE_VARIABLE)
    return Path(named).expanduser().absolute() if named else None


def read_file(file: Path, known: Collection[str]) -> dict[str, Any]:
    """Read the file's values, unchecked.

    Raises InvalidSettings: no file, no TOML, no such setting.
    """
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSettings(f"{file} is not valid TOML: {error}") from error
    if unknown := [name for name in values if name not in known]:
        raise InvalidSettings("\n".join(f"{file}: {name}: {_not_known(name, known)}" for name in unknown))
    return values


def _unknown(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Say of each PACELINE_* variable that nothing reads which one may have been meant."""
    settings = [name.removeprefix(PREFIX).lower() for name in known if name.startswith(PREFIX)]
    for name, text in sorted(environ.items()):
        if text and name.startswith(PREFIX) and name not in known and not OF_KUBERNETES.match(f"{name}={text}"):
            yield f"{name}: {_not_known(name.removeprefix(PREFIX), settings, variable)}"


def _not_known(name: str, known: Collection[str], spelled: Callable[[str], str] = str) -> str:
    name = name.lower().replace("-", "_")
    if name in REMOVED:
        return f"no longer a setting: it is always {REMOVED[name]}; remove it"
    if name in PARTS:
        return "no longer a setting but a part of the plan: write it into a TOML file, and name that as the plan"
    close = get_close_matches(name, known, n=1)
    return f"no such setting; {f'{spelled(close[0])}, perhaps' if close else '`paceline config` lists them'}"
