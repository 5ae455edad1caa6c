"""Compiled functions on disk: kept by one process, taken by the next."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from orthogp import InputError, keep_compiled

SCRIPT = """
import sys, numpy as np, jax
from orthogp import GPRegressor, keep_compiled
keep_compiled(sys.argv[1])
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
X = np.linspace(0, 1, 200)[:, None]
model = GPRegressor("matern32", solver="dense").fit(X, np.sin(9 * X[:, 0]))
print(sum(name.endswith("cache_hits") for name in hits), repr(model.elbo_))
"""


def run(folder):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    hits, value = done.stdout.split()
    return int(hits), float(value)


@pytest.mark.slow
def test_a_second_process_takes_what_the_first_has_compiled(tmp_path):
    folder = tmp_path / "caches" / "own"
    first, value = run(folder)
    kept = sorted(folder.iterdir())
    second, again = run(folder)
    assert first == 0
    assert second >= 3
    assert len(kept) >= 3
    assert again == value


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_the_folder_is_the_users_alone_and_a_file_in_its_place_is_refused(tmp_path, monkeypatch):
    import jax

    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    try:
        path = keep_compiled()
        assert path == tmp_path / "orthogp"
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        (tmp_path / "taken").write_text("")
        with pytest.raises(InputError, match="cannot be kept"):
            keep_compiled(tmp_path / "taken")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
