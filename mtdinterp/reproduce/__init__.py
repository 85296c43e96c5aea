"""The paper's figures and tables, made again: its claims next to what is measured here.

A figure is one module with a function under `@register_figure`; `registry` finds it by reading this
package's source. Estimators and models are left to their own packages, drawing to
`mtdinterp.plotting`.
"""
