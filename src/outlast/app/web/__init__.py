"""`outlast serve`: the page of a run in a browser, live, and an overview of many runs.

site.py looks at runs; pages.py and json_api.py answer requests; stream.py tells a page what has
changed; guard.py checks every request first. FastAPI comes with the extra outlast[web].
"""
