"""Stand in for pydantic where it is missing: make the records that the engine reads.

Validates nothing. The engine takes the sampling and the lengths of a request from such records and
needs no more of pydantic than their fields and defaults.
"""

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class BaseModel:
    """A record whose fields are the annotated names of the class and of its bases."""

    model_config: Any = None
    model_fields: dict[str, Any]

    def __init_subclass__(cls, **_: Any) -> None:
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            found |= {name: None for name in vars(base).get("__annotations__", {}) if not name.startswith("model_")}
        cls.model_fields = found

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - self.model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        for name in self.model_fields:
            value = given[name] if name in given else getattr(type(self), name, ...)
            if value is ...:
                raise TypeError(f"{type(self).__name__} needs {name}")
            self.__dict__[name] = value.make() if isinstance(value, _Made) else value

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    @classmethod
    def model_construct(cls, **given: Any) -> Any:
        """Make a record, as the constructor does."""
        return cls(**given)

    def model_copy(self, *, update: dict[str, Any]) -> Any:
        """Return a copy with some fields changed."""
        return type(self)(**{**self.__dict__, **update})


class _Made:
    """A default that is made anew for each record."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def field(default: Any = ..., *, default_factory: Callable[[], Any] | None = None, **_: Any) -> Any:
    """Return a field's default; bounds and descriptions are ignored."""
    return default if default_factory is None else _Made(default_factory)


def stand_in() -> list[str]:
    """Take pydantic's place where it cannot be imported; return the names of the replaced
    packages."""
    if importlib.util.find_spec("pydantic") is not None:
        return []
    import transformers  # noqa: F401  (it looks which packages there are, before the stand-in is one of them)

    module: Any = ModuleType("pydantic", __doc__)
    module.__spec__ = ModuleSpec("pydantic", None)
    module.BaseModel, module.Field, module.ConfigDict = BaseModel, field, dict
    module.field_validator = module.model_validator = lambda *_, **__: lambda function: function
    sys.modules["pydantic"] = module
    print(
        "pydantic is not installed: a stand-in makes the records, unchecked. With its wheels (pydantic, pydantic_core,"
    )
    print("annotated_types, typing_inspection) in a folder on PYTHONPATH the real one is used.", flush=True)
    return ["pydantic"]
