"""Assemble the rows that a training learns from: make those that are missing, then read all."""

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
    """The hashes in which data and drafters must agree to be of one target."""

    tokenizer_sha256: str
    embedding_sha256: str


class Material(NamedTuple):
    """Rows, and their sources in words."""

    rows: list[Row]
    sources: list[str]


def check_paths(options: Options) -> None:
    """Check, before anything is loaded, that all paths to read exist. Raises InvalidRequest."""
    texts = [_text(word)[1] for word in options.text]
    for field, path in [*(("text", path) for path in texts), *(("data", path) for path in options.data)]:
        if not path.exists():
            raise InvalidRequest(field, f"there is no {path}")


def gather(options: Options, settings: Settings, target: Path, identity: Identity, width: int) -> Material:
    """Make the rows that are missing and read all of them.

    `target`: its folder; `width`: its d. Raises InvalidRequest, GenerationFailed, ModelRefused.
    """
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
    """Make files of rows, or complete them."""

    options: Options
    folder: Path
    identity: Identity
    tokenizer: Tokenizer
    model: Forward

    def answers(self) -> Path:
        """Complete the file of the target's answers; return its path. Raises InvalidRequest, GenerationFailed."""
        seed, longest = self.options.seed, self.options.max_tokens
        path = self.folder / f"generated-{seed}-{longest}.jsonl"
        wanted = asks(DOMAINS, self.options.prompts_wanted, seed)
        with RowFile(path, {**self.identity._asdict(), "seed": seed, "max_tokens": longest}) as file:
            generate(wanted, self.model, self.tokenizer, longest, file)
        return path

    def reading(self, domain: str, text: Path) -> Path:
        """Complete the file of rows that the target reads from a text; return its path. Raises InvalidRequest."""
        found = teacher_forcing.windows(text, domain, self.tokenizer, self.options.windows, self.options.seed)
        mark = hashlib.sha256(str(text.resolve()).encode()).hexdigest()[:8]
        path = self.folder / f"text-{domain}-{mark}.jsonl"
        with RowFile(path, {**self.identity._asdict(), "source": text.name}) as file:
            teacher_forcing.read_windows(found, domain, self.model, file)
        return path


def _text(word: str) -> tuple[str, Path]:
    """Parse DOMAIN=PATH, or a path alone, whose domain its files decide; return (domain, path)."""
    domain, _, rest = word.partition("=")
    if rest and domain in DOMAINS:
        return domain, Path(rest).expanduser()
    path = Path(word).expanduser()
    if rest and not path.exists():
        raise InvalidRequest("text", f"{domain!r} is no domain; there are {', '.join(DOMAINS)}")
    return teacher_forcing.domain_of(path), path
