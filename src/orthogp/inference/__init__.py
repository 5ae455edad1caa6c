"""Bounds, learning and posteriors, from sums alone."""

from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.domain import Domain
from orthogp.inference.moments import Moments, moments_from_rows, moments_from_statistics
from orthogp.inference.posterior import FunctionDraws, Gaussian, Posterior

__all__ = [
    "Bound",
    "Certificate",
    "Domain",
    "FunctionDraws",
    "Gaussian",
    "Moments",
    "Posterior",
    "moments_from_rows",
    "moments_from_statistics",
]
