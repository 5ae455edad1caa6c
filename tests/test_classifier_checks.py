"""scikit-learn's own checks of classifiers."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from orthogp.classifier import GPClassifier
from orthogp.kernels import RBF

# The checks with more than three input columns need a kernel on fewer; with hyperparameters given,
# since all of them together fit some hundred models.
FIRST_COLUMN = GPClassifier(RBF(20.0, 0.5).on(0), learn=False, max_features=49, n_jobs=1)


@pytest.mark.slow
@parametrize_with_checks(
    [FIRST_COLUMN],
    expected_failed_checks=lambda estimator: {
        "check_classifiers_train": "the first column alone does not tell its classes apart"
    },
)
def test_estimator_satisfies_scikit_learn(estimator, check):
    np.random.seed(0)  # noqa: NPY002 (some checks draw from the global state)
    check(estimator)
