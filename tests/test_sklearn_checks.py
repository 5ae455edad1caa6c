"""scikit-learn's own checks of estimators."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from orthogp import GPRegressor
from orthogp.kernels import RBF

# Some checks bring five or ten input columns: by name the kernel is then additive.
JOINT = GPRegressor(max_features=49)
FIRST_COLUMN = GPRegressor(RBF().on(0), max_features=49)


def _run(estimator, check):
    np.random.seed(0)  # noqa: NPY002 (some checks draw from the global state)
    check(estimator)


@parametrize_with_checks(
    [FIRST_COLUMN],
    expected_failed_checks=lambda _: {
        "check_regressors_train": "the first of ten columns says nothing about its targets"
    },
)
def test_kernel_on_one_column_satisfies_scikit_learn(estimator, check):
    _run(estimator, check)


@pytest.mark.slow
@parametrize_with_checks([JOINT])
def test_kernel_on_all_columns_satisfies_scikit_learn(estimator, check):
    _run(estimator, check)
