"""Settings of the handbook builder."""

project = "Saltmarsh House handbook"
author = "the registrar"
extensions = []
html_theme = "plain"
