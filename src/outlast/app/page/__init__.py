"""The page of a run: `outlast report --html`, `--md`, and what `outlast serve` shows.

page_model.py computes what a page says; the other modules compute its parts. page_html.py and
page_markdown.py write it down.
"""
