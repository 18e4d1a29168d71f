"""
The page at ``/``: what an engineer on call reads where there is no Grafana.

Everything that it says is made here, in Python, as a tree of elements (view.py): the server sends the first one as
HTML, which is readable without JavaScript, and then what changed in it, which page.js puts in place.
"""
