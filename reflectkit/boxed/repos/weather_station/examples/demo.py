"""Prints a curve of the sample day in the terminal."""

import csv

from pytools import plot

with open("tables/day_sample.tsv", newline="", encoding="ascii") as handle:
    rows = list(csv.DictReader(handle, delimiter="\t"))
print("\n".join(plot.curve([float(row["air"]) for row in rows])))
