"""Files of models, sketches and statistics: one format, without code in it (docs/format.md)."""

from orthogp.storage.container import Header, read_header
from orthogp.storage.files import MODEL_KINDS, load_model, save_model
from orthogp.storage.sketches import load_sketch, save_sketch

__all__ = [
    "MODEL_KINDS",
    "Header",
    "load_model",
    "load_sketch",
    "read_header",
    "save_model",
    "save_sketch",
]
