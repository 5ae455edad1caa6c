"""Files of models, sketches and statistics: one format, without code in it (docs/format.md)."""

from orthogp.storage.codec import register
from orthogp.storage.container import Header, read_header
from orthogp.storage.models import (
    MODEL_KINDS,
    load,
    load_model,
    load_sketch,
    save,
    save_sketch,
)

__all__ = [
    "MODEL_KINDS",
    "Header",
    "load",
    "load_model",
    "load_sketch",
    "read_header",
    "register",
    "save",
    "save_sketch",
]
