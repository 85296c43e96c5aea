"""Tests of sweeps, and the small sweep that they share."""
