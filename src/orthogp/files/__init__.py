"""Rows from files and clusters: read by column names, summed in one pass, and written.

::

    source = open_source("data/*.parquet", "y", ["a", "b"])   # checks every file's columns
    rows, tally = source.read()                               # all at once, or
    for index, block in source.blocks(): ...                  # in bounded blocks

`source.py` finds and opens files, `text.py` and `arrow.py` read them, `writing.py` writes tables;
`summing.py` sums rows in one pass, here or on a cluster (`cluster.py`, the only file that imports
dask), and `fitting.py` fits models to the sums.
"""
