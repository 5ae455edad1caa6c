"""`python -m orthogp.cli`: the `orthogp` command."""

from orthogp.cli import main

main(prog_name="orthogp")
