"""Tables: rows read from CSV, TSV and Parquet files by column names, and written.

::

    source = open_source(["data/*.parquet"], ["y"], ["a", "b"])   # checks every file's columns
    rows, tally = source.read()                                   # all at once, or
    for index, block in source.blocks(): ...                      # in bounded blocks
"""

from orthogp.tables.pieces import Block, Piece, Reading, Tally
from orthogp.tables.read import Table, read_table
from orthogp.tables.source import RowArrays, RowSource, as_rows, open_source, read_piece
from orthogp.tables.times import TimeScale
from orthogp.tables.writing import align, check_destination, table_writer, write_rows

__all__ = [
    "Block",
    "Piece",
    "Reading",
    "RowArrays",
    "RowSource",
    "Table",
    "Tally",
    "TimeScale",
    "align",
    "as_rows",
    "check_destination",
    "open_source",
    "read_piece",
    "read_table",
    "table_writer",
    "write_rows",
]
