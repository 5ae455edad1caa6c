"""Fits of every kind give the numbers they gave before the code was rearranged."""

import json
import warnings

import numpy as np
import pytest

from tests.fingerprints.fits import FITS, STORED

BEFORE = json.loads(STORED.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_numbers_have_not_moved(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        now = FITS[name]()
    assert now.keys() == BEFORE[name].keys()
    for key, value in now.items():
        np.testing.assert_allclose(value, BEFORE[name][key], rtol=1e-6, err_msg=key)
