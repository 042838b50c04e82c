"""Write docs/settings.md: `python -m app.cli.settings_page > docs/settings.md`."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from app.cli.config import list_settings, unit_of
from app.config import FILE_VARIABLE, ROOT, as_text
from app.plans import BASE, PARTS, PLANS, Plan
from app.variables import GROUPS

HEAD = """\
# Settings

Made by `python -m app.cli.settings_page`. The environment beats the file of settings, which is TOML with the settings'
names as keys, in small letters and without `PACELINE_`. `PACELINE_CONFIG` names the file; else `./paceline.toml` is
read, else `~/.config/paceline/config.toml`. A name that is not listed here is refused. `./paceline config` shows the
present values.
"""
PLAN = """\
## A plan's file

`PACELINE_PLAN`, and `--plan` of `up` and `generate`, take the name of a plan or a TOML file. The file names the plan
that it starts from, and the parts that differ:

```toml
base = "cosine"
fusion = "tree"
drafters_per_sequence = 2
```

In place of a file the variable also takes the same as a TOML table on one line: `{base = "cosine", fusion = "tree"}`.
"""
Row = tuple[str, str, str | None, str]  # name, unit, default, effect


def page() -> str:
    found = list_settings({FILE_VARIABLE: os.devnull})
    lines = HEAD.splitlines()
    for group, title in GROUPS.items():
        rows = [(own.name, own.unit, own.default, own.effect) for own in found if own.group == group]
        lines += ["", f"## {title.split(':')[0]}", "", *_table(rows)]
    return "\n".join([*lines, "", *PLAN.splitlines(), "", *_parts(), "", *_plans()]) + "\n"


def _parts() -> Iterator[str]:
    yield "| part | values | effect |"
    yield "|---" * 3 + "|"
    yield f"| `{BASE}` | name of a plan | the plan that the file changes; absent: pace |"
    for name in sorted(PARTS):
        field = Plan.model_fields[name]
        values = "table" if isinstance(field.default, BaseModel) else unit_of(name, field)
        yield f"| `{name}` | {_cell(values)} | {_cell(field.description or '')} |"


def _plans() -> Iterator[str]:
    yield "| part | " + " | ".join(PLANS) + " |"
    yield "|---" * (1 + len(PLANS)) + "|"
    for name in sorted(PARTS - {"objective"}):
        yield f"| `{name}` | " + " | ".join(as_text(getattr(plan, name)) for plan in PLANS.values()) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| variable | unit or values | default | effect |"
    yield "|---" * 4 + "|"
    for name, unit, default, effect in rows:
        usual = (default or "").replace(str(ROOT), ".").replace(str(Path.home()), "~")
        yield f"| `{name}` | " + " | ".join(map(_cell, (unit, usual, effect))) + " |"


if __name__ == "__main__":
    print(page(), end="")
