"""Deadlines of a fit."""

from __future__ import annotations

import time

from orthogp.learning.problem import FitSettings


def test_a_fit_is_late_once_the_work_ahead_takes_longer_than_is_left():
    settings = FitSettings(deadline=time.monotonic() + 100)
    assert not settings.late()
    assert not settings.late(ahead=50)
    assert settings.late(ahead=150)
    assert FitSettings(deadline=time.monotonic() - 1).late()


def test_without_a_deadline_nothing_is_late():
    assert not FitSettings().late(ahead=1e9)
