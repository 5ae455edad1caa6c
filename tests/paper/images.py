"""What every figure must be."""

from pathlib import Path

import numpy as np
from matplotlib.image import imread


def assert_drawn(path: Path) -> None:
    """Neither blank nor a blot: curves and text on a white ground."""
    pixels = imread(path)[..., :3]
    assert pixels.shape[0] >= 450
    assert pixels.shape[1] >= 500
    white = np.mean(np.all(pixels == 1, axis=-1))
    assert 0.3 < white < 0.98
    colours = np.round(pixels * 255).astype(int) @ [1, 256, 256**2]
    assert len(np.unique(colours)) > 50
