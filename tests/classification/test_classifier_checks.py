"""scikit-learn's own checks of classifiers.

Some bring five or ten input columns and more: by name the kernel is then additive.
"""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from orthogp.classifier import GPClassifier

FIXED = GPClassifier(learn=False, max_features=49, n_jobs=1)
LEARNED = GPClassifier("rbf", max_features=49, n_jobs=1)


def _run(estimator, check):
    np.random.seed(0)  # noqa: NPY002 (some checks draw from the global state)
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([FIXED])
def test_classifier_with_a_given_kernel_satisfies_scikit_learn(estimator, check):
    _run(estimator, check)


@pytest.mark.slow
@parametrize_with_checks([LEARNED])
def test_classifier_that_learns_satisfies_scikit_learn(estimator, check):
    _run(estimator, check)
