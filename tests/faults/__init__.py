"""Tools that make file-system calls fail, kill a process at them, or lose what was not synced.

They work on anything that writes through `mtdinterp.storage`.
"""
