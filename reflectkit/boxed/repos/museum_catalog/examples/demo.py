"""Show how a number is normalised."""

from core.numbering import normalise

for text in ("E 114", "1974/12/3", "SM.2015.3.1F"):
    print(text, "->", normalise(text))
