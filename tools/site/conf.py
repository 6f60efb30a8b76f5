"""Sphinx's configuration. `tools/site/build.py` calls it over the pages that it has gathered."""

project = "outlast"
author = "the outlast developers"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_title = "outlast"
html_show_sphinx = False
exclude_patterns = ["_build"]
