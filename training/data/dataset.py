"""Assemble the rows that a training learns from: make those that are missing, then read all."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from app.config import Settings
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
    paths, sources, about = [*options.data], [path.name for path in options.data], identity._asdict()
    if options.prompts_wanted or texts:
        folder = options.made or settings.home / "training" / f"{target.name}-{identity.embedding_sha256[:8]}"
        model = load_engine(target, settings)
    if options.prompts_wanted:
        seed, longest = options.seed, options.max_tokens
        wanted = asks(DOMAINS, options.prompts_wanted, seed)
        paths.append(folder / f"generated-{seed}-{longest}.jsonl")
        sources.append(f"the target's answers to {options.prompts_wanted} prompts of each domain")
        with RowFile(paths[-1], {**about, "seed": seed, "max_tokens": longest}) as file:
            generate(wanted, model, tokenizer, longest, file)
    for domain, text in texts:
        found = teacher_forcing.windows(text, domain, tokenizer, options.windows, options.seed)
        mark = hashlib.sha256(str(text.resolve()).encode()).hexdigest()[:8]
        paths.append(folder / f"text-{domain}-{mark}.jsonl")
        sources.append(f"{domain} text in {text.name}, read by the target")
        with RowFile(paths[-1], {**about, "source": text.name}) as file:
            teacher_forcing.read_windows(found, domain, model, file)
    return Material(read(dict.fromkeys(paths), width, tokenizer.vocab_size, about), sources)


def _text(word: str) -> tuple[str, Path]:
    """Parse DOMAIN=PATH, or a path alone, whose domain its files decide; return (domain, path)."""
    domain, _, rest = word.partition("=")
    if rest and domain in DOMAINS:
        return domain, Path(rest).expanduser()
    path = Path(word).expanduser()
    if rest and not path.exists():
        raise InvalidRequest("text", f"{domain!r} is no domain; there are {', '.join(DOMAINS)}")
    return teacher_forcing.domain_of(path), path
