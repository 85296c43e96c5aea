"""Fuzzing of every reader: damaged input is described, built, and read in a limited process."""
