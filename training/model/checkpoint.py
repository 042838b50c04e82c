"""Save and restore the state of a training: one safetensors file, always replaced whole.

Tensors: `model.<name>` the student's, `<exp_avg|exp_avg_sq|step>.<name>` the optimiser's. The header holds JSON: the
step, how many there will be, and the training's fingerprint. There is no state of a random generator to keep, since a
step's chance comes from the seed and its number. So a training that was killed and goes on ends with the same weights.
"""

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from app.errors import InvalidRequest
from app.system import make_whole
from training.model.learner import Learner

FILE = "checkpoint.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Progress(BaseModel):
    """The part of a checkpoint that is not tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fingerprint: str  # of all that the weights depend on; a checkpoint goes on with the same only
    step: int
    total_steps: int | None  # None while a training by minutes has not found its pace
    seconds: float  # spent in steps so far
    loss: float  # mean over the last steps


def save(folder: Path, learner: Learner, progress: Progress) -> None:
    """Write the learner's present state, in place of an older checkpoint."""
    tensors = {f"model.{name}": tensor.detach().contiguous() for name, tensor in learner.student.state_dict().items()}
    state = learner.optimiser.state
    for name, parameter in learner.student.named_parameters():
        tensors |= {f"{key}.{name}": state[parameter][key] for key in MOMENTS if parameter in state}
    header = {"progress": progress.model_dump_json()}
    folder.mkdir(parents=True, exist_ok=True)
    make_whole(folder / FILE, lambda scratch: save_file(tensors, scratch, metadata=header))


def load(folder: Path, learner: Learner, fingerprint: str) -> Progress | None:
    """Restore the learner and return the progress, or None without a checkpoint. Raises InvalidRequest for a file that
    is no checkpoint, or one of another fingerprint."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress.model_validate_json((file.metadata() or {}).get("progress", ""))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, ValidationError) as error:
        raise InvalidRequest("out", f"{path} is no checkpoint of this program; --restart leaves it") from error
    if progress.fingerprint != fingerprint:
        raise InvalidRequest(
            "out",
            f"{folder} holds step {progress.step} of a training with other data or other flags; "
            "give the same ones to go on with it, or --restart",
        )
    _restore(learner, tensors)
    learner.step = progress.step
    return progress


def remove(folder: Path) -> None:
    """Delete the checkpoint, if there is one."""
    (folder / FILE).unlink(missing_ok=True)


def _restore(learner: Learner, tensors: dict[str, torch.Tensor]) -> None:
    model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    learner.student.load_state_dict(model)
    for name, parameter in learner.student.named_parameters():
        held = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
        if held:
            learner.optimiser.state[parameter] = held
