"""The workbench: inspect a run of a model, edit it and see the effect, in a page or a notebook.

`state` describes a view, `models` lists what can be opened, and `scene` combines the two. `views`
and `cone` compute the numbers, `python_code` turns a view into code, and `document` into a
document. `workbench` answers the questions of the page, and `server` gives each question an
address. Only `server`, `static_files` and `security` need the extra `[app]`; `mtdinterp.notebook`
uses the others too.
"""
