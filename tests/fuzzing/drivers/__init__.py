"""One module per family of readers: how a case becomes files, and how they are read.

Each module has `REFUSALS`, the errors that its readers document, and the functions `prepare`
(once per server), `build` (without limits) and `read` (within limits). `read` returns a few words
about what was loaded.
"""
