"""Tests of making, correcting and fitting performance profiles."""
