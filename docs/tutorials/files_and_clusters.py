# %% [markdown]
# # Files and clusters
#
# Models from CSV and Parquet files without writing Python: fit, predict, report, sums made in
# pieces and merged, and a run that was killed and goes on. Whatever their size, files are read in
# one pass within bounded memory.
#
# Some files first: a river's level over four years, hourly, one file per year, with dates, a few
# empty cells, and one broken line.

# %%
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
times = pd.date_range("2020-01-01", "2023-12-31 23:00", freq="h")
days = np.arange(len(times)) / 24
level = 3 + 0.8 * np.cos(2 * np.pi * days / 365.25) + 0.3 * np.sin(2 * np.pi * days / 30)
table = pd.DataFrame({"time": times, "level": level + 0.1 * rng.standard_normal(len(times))})
table.loc[rng.choice(len(table), 50, replace=False), "level"] = np.nan
Path("river").mkdir()
for year, rows in table.groupby(table.time.dt.year):
    rows.to_csv(f"river/{year}.csv", index=False, float_format="%.4f")
with Path("river/2021.csv").open("a") as file:
    file.write("2021-12-31 23:30:00,high water!\n")


def shell(command):
    """Run a command as a shell would, and show what it says."""
    words = shlex.split(command)
    words = [sys.executable, "-m", "orthogp", *words[1:]] if words[0] == "orthogp" else words
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f"$ {command}\n{done.stdout.rstrip()}")
    return done


# %% [markdown]
# ## Fit
#
# `--target` names what to predict; all other columns are inputs, or those that `--inputs` names.
# Something is wrong with one line:

# %%
failed = shell("orthogp fit river --target level --out river.orthogp")

# %% [markdown]
# One sentence, the file and the line, and exit code 1. Correct the line, or leave such rows out:

# %%
fitted = shell("orthogp fit river --target level --skip-bad --kernel rbf --out river.orthogp")

# %% [markdown]
# Dates have become days, empty cells were left out, the rest is the summary of the [quick
# start](quick_start.md). `--json` prints the same for programs.
#
# ## Predict and report
#
# Predictions are a table again, with dates as dates; `lower_function` and `upper_function` are the
# ends of the 95 % interval of the level itself, and `--noise` gives those of a new reading
# (`lower_observation`, `upper_observation`). `--keep` writes further columns, such as names.

# %%
Path("new.csv").write_text("time\n2021-06-01 12:00:00\n2022-02-03 00:00:00\n2035-01-01 00:00:00\n")
predicted = shell("orthogp predict river.orthogp new.csv --out predicted.csv")
print(Path("predicted.csv").read_text())
shell("orthogp report river.orthogp --out river.html")

# %% [markdown]
# A model speaks for a range, and says so: 2035 lies outside of it, and what is predicted there is
# the prior's, with its large standard deviation. `--domain` widens the range.
#
# ## Sums in pieces
#
# A model needs sums of its rows only, and sums add up. `orthogp sketch` makes them, here for two
# halves, as if each lay on another machine. The first chooses the lattice, for a range that holds
# both (`--domain`, in numbers or dates); the second follows it. A sketch holds sums, not rows: less
# to send, but no way to keep rows secret: [what files hold of the rows](../format.md#rows).

# %%
table["hours"] = days * 24
table = table.dropna()
for name, rows in table.groupby(np.where(table.time.dt.year < 2022, "early", "late")):
    rows[["hours", "level"]].to_parquet(f"{name}.parquet", index=False)
shell(f"orthogp sketch early.parquet --target level --domain 0:{len(times)} --out early.orthogp")

# %% [markdown]
# ## Killed, and going on
#
# A long pass notes every minute how far it has come, beside its output. Let the second half note
# it all the time, in small batches, and kill it as soon as there is a note:

# %%
command = (
    "orthogp sketch late.parquet --target level --lattice-of early.orthogp --out late.orthogp "
    "--checkpoint-seconds 0 --batch-rows 500"
)
run = subprocess.Popen(
    [sys.executable, "-m", "orthogp", *shlex.split(command)[1:]],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
while run.poll() is None and not Path("late.orthogp.checkpoint").exists():
    time.sleep(0.002)
run.send_signal(signal.SIGKILL)
run.wait()
print("killed; there is a checkpoint:", Path("late.orthogp.checkpoint").exists())
resumed = shell(command)

# %% [markdown]
# ## Merge, and fit
#
# Statistics know no kernel: any number of models can be fitted to them, however many rows they sum.

# %%
shell("orthogp merge early.orthogp late.orthogp --out all.orthogp")
merged = shell("orthogp fit all.orthogp --kernel rbf --out merged.orthogp")

# %% [markdown]
# ## Clusters
#
# The same works across machines at once: `orthogp fit --scheduler ADDRESS` sums files on the
# workers of a Dask cluster, and in Python `FourierStatistics.from_dask` sums a Dask array or data
# frame. [Scale](../scale.md) has both.
#
# What this page claims, as checks:

# %%
assert failed.returncode == 1
assert "2021.csv" in failed.stdout
assert fitted.returncode == 0
assert "50 rows lack a value" in fitted.stdout
assert "1 bad row" in fitted.stdout
assert "1 of 3 rows lie outside" in predicted.stdout
table_out = pd.read_csv("predicted.csv", parse_dates=["time"])
at = np.array([days[times.get_loc(moment)] for moment in table_out.time[:2]])
truth = 3 + 0.8 * np.cos(2 * np.pi * at / 365.25) + 0.3 * np.sin(2 * np.pi * at / 30)
assert np.all(np.abs(table_out["mean"][:2] - truth) < 5 * table_out["sd_function"][:2])
assert Path("river.html").stat().st_size > 10_000
assert merged.returncode == 0
assert f"{len(table):,} rows" in merged.stdout
assert "Going on from late.orthogp.checkpoint" in resumed.stdout
