"""scikit-learn's own checks of estimators."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from orthogp import GPRegressor
from orthogp.kernels import RBF

# These checks bring five or ten input columns, and a kernel takes at most three jointly. A kernel
# on the first column alone takes any number, and satisfies them.
WIDE_CHECKS = {
    "check_n_features_in_after_fitting",
    "check_positive_only_tag_during_fit",
    "check_estimators_dtypes",
    "check_sample_weight_equivalence_on_dense_data",
    "check_dtype_object",
    "check_regressors_train",
    "check_regressor_data_not_an_array",
    "check_regressor_multioutput",
    "check_regressors_no_decision_function",
    "check_regressors_int",
}
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
@parametrize_with_checks(
    [JOINT],
    expected_failed_checks=lambda _: dict.fromkeys(
        WIDE_CHECKS, "the check's data have more than three input columns"
    ),
)
def test_kernel_on_all_columns_satisfies_scikit_learn(estimator, check):
    _run(estimator, check)
