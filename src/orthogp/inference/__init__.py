"""Bounds, learning and posteriors, from sums alone."""

from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.moments import Moments, moments_from_rows, moments_from_statistics
from orthogp.inference.posterior import FunctionDraws, Posterior
from orthogp.inference.predictive import Functions, Gaussian
from orthogp.rows import Domain

__all__ = [
    "Bound",
    "Certificate",
    "Domain",
    "FunctionDraws",
    "Functions",
    "Gaussian",
    "Moments",
    "Posterior",
    "moments_from_rows",
    "moments_from_statistics",
]
