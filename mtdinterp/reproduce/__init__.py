"""The paper's figures and tables, made again: what it claims next to what is measured here.

`registry` knows what there is to make and imports nothing heavy; one module a theme makes it.
"""
