"""What stands in for pydantic where it is missing: enough to make the records that the engine reads.

Nothing is validated. The engine takes the sampling and the lengths of a request from such records and knows no more
of pydantic than their fields and defaults.
"""

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class BaseModel:
    """Fields are the annotated names of the class and of its bases."""

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
        return cls(**given)

    def model_copy(self, *, update: dict[str, Any]) -> Any:
        return type(self)(**{**self.__dict__, **update})


class _Made:
    """A default that is made anew."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def field(default: Any = ..., *, default_factory: Callable[[], Any] | None = None, **_: Any) -> Any:
    """Its default; bounds and descriptions are forgotten."""
    return default if default_factory is None else _Made(default_factory)


def stand_in() -> list[str]:
    """Take pydantic's place where it cannot be imported. The names of what was replaced."""
    if importlib.util.find_spec("pydantic") is not None:
        return []
    import transformers  # noqa: F401  (it asks itself which packages there are, and must find the truth)

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
