"""Sweeps: grids of training runs and their probes, on one machine or on many.

A grid file (`grid`) expands to settings, and each combination becomes a cell (`cells`): one
training run with its probes, in a directory named after a hash of everything that decides the run.
`running` runs one cell, whoever asks for it; an engine (`engines`) only decides where and when
cells run. All truth is in files: `status` reads it, `table` and `page` show it.
"""
