"""Probes: one module a question about a trained or constructed model.

A probe is a function from a hooked model and a task to a frozen result; it imports mtdinterp's core and
never another probe.
"""
