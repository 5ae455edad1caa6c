"""Files of models, sketches and statistics: one format, without code in it (docs/format.md).

Names are loaded when first asked for: what a file is can be said without what reads it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthogp.storage.codec import register
    from orthogp.storage.container import Header, read_header
    from orthogp.storage.models import (
        load,
        load_model,
        load_sketch,
        save,
        save_sketch,
    )

__all__ = [
    "Header",
    "load",
    "load_model",
    "load_sketch",
    "read_header",
    "register",
    "save",
    "save_sketch",
]

_HOMES = {"Header": "container", "read_header": "container", "register": "codec"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'orthogp.storage' has no attribute {name!r}")
    return getattr(import_module(f"orthogp.storage.{_HOMES.get(name, 'models')}"), name)
