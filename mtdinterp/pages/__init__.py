"""Documents made of typed blocks, shown as a self-contained page, as Markdown or in a notebook.

- `blocks`: what a document consists of, with `charts`. Nothing there knows how it will be shown.
- `page`: a document as HTML; its charts come from `svg`, its heat maps from `heatmaps`.
- `markdown`: a document as Markdown; its pictures are drawn by `pictures`.
"""
