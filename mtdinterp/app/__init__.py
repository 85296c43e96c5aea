"""The workbench: look at a model's run, change it, see what follows, in a page or a notebook.

`state` says what is looked at, `models` what may be opened, `scene` brings both together, `views`
and `cone` compute the numbers, `python_code` writes them as code and `document` as a document. Only
`server` and `security` need the extra `[app]`; everything else is used by `mtdinterp.notebook` too.
"""
