"""scikit-learn's own checks of classifiers."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from orthogp.classifier import GPClassifier
from orthogp.kernels import RBF

# The checks with more than three input columns need a kernel on fewer, here with hyperparameters
# given.
FIRST_COLUMN = GPClassifier(RBF(20.0, 0.5).on(0), learn=False, max_features=49, n_jobs=1)


TOO_WIDE = "the kernel acts on at most three columns jointly, this check has more"
WIDE_CHECKS = (
    "check_n_features_in_after_fitting",
    "check_positive_only_tag_during_fit",
    "check_estimators_dtypes",
    "check_sample_weight_equivalence_on_dense_data",
    "check_dtype_object",
    "check_classifiers_one_label_sample_weights",
)


def expected_failures(estimator: GPClassifier) -> dict[str, str]:
    if estimator.learn:
        return dict.fromkeys(WIDE_CHECKS, TOO_WIDE)
    return {"check_classifiers_train": "the first column alone does not tell its classes apart"}


@pytest.mark.slow
@parametrize_with_checks(
    [FIRST_COLUMN, GPClassifier("rbf", max_features=49, n_jobs=1)],
    expected_failed_checks=expected_failures,
)
def test_estimator_satisfies_scikit_learn(estimator, check):
    np.random.seed(0)  # noqa: NPY002 (some checks draw from the global state)
    check(estimator)
