"""The rows a training learns from: made by the target if they are asked for and not there yet, then read."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.config import Settings
from app.engine.cpu.forward import Forward
from app.engine.text.tokenizer import Tokenizer
from app.errors import InvalidRequest
from training.data import teacher_forcing
from training.data.generate import asks, generate, load_engine
from training.data.rows import Row, RowFile, read
from training.options import Options
from training.prompts.draw import DOMAINS


class Identity(NamedTuple):
    """What data and drafters must agree in to be of one target."""

    tokenizer_sha256: str
    embedding_sha256: str


class Material(NamedTuple):
    """Rows, and where they come from in words."""

    rows: list[Row]
    sources: list[str]


def check_paths(options: Options) -> None:
    """Before anything is loaded: is what is to be read there? Raises InvalidRequest."""
    texts = [_text(word)[1] for word in options.text]
    for field, path in [*(("text", path) for path in texts), *(("data", path) for path in options.data)]:
        if not path.exists():
            raise InvalidRequest(field, f"there is no {path}")


def gather(options: Options, settings: Settings, target: Path, identity: Identity, width: int) -> Material:
    """Make what is missing, and read it all. `width`: the target's d. Raises InvalidRequest."""
    tokenizer = Tokenizer(target)
    texts = [_text(word) for word in options.text]
    paths, sources = [*options.data], [path.name for path in options.data]
    if options.prompts_wanted or texts:
        folder = options.made or settings.home / "training" / f"{target.name}-{identity.embedding_sha256[:8]}"
        maker = _Maker(options, folder, identity, tokenizer, load_engine(target, settings))
        if options.prompts_wanted:
            paths.append(maker.answers())
            sources.append(f"the target's answers to {options.prompts_wanted} prompts of each domain")
        for domain, path in texts:
            paths.append(maker.reading(domain, path))
            sources.append(f"{domain} text in {path.name}, read by the target")
    rows = read(dict.fromkeys(paths), width, tokenizer.vocab_size, identity._asdict())
    return Material(rows, sources)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes files of rows, or what is missing of them."""

    options: Options
    folder: Path
    identity: Identity
    tokenizer: Tokenizer
    model: Forward

    def answers(self) -> Path:
        seed, longest = self.options.seed, self.options.max_tokens
        path = self.folder / f"generated-{seed}-{longest}.jsonl"
        wanted = asks(DOMAINS, self.options.prompts_wanted, seed)
        with RowFile(path, {**self.identity._asdict(), "seed": seed, "max_tokens": longest}) as file:
            generate(wanted, self.model, self.tokenizer, longest, file)
        return path

    def reading(self, domain: str, text: Path) -> Path:
        found = teacher_forcing.windows(text, domain, self.tokenizer, self.options.windows, self.options.seed)
        mark = hashlib.sha256(str(text.resolve()).encode()).hexdigest()[:8]
        path = self.folder / f"text-{domain}-{mark}.jsonl"
        with RowFile(path, {**self.identity._asdict(), "source": text.name}) as file:
            teacher_forcing.read_windows(found, domain, self.model, file)
        return path


def _text(word: str) -> tuple[str, Path]:
    """(domain, path) of DOMAIN=PATH, or of a path whose files say what they are."""
    domain, _, rest = word.partition("=")
    if rest and domain in DOMAINS:
        return domain, Path(rest).expanduser()
    path = Path(word).expanduser()
    if rest and not path.exists():
        raise InvalidRequest("text", f"{domain!r} is no domain; there are {', '.join(DOMAINS)}")
    return teacher_forcing.domain_of(path), path
