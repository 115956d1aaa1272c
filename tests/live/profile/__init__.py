"""Profiles of live workers."""
