"""The CPU test bed: real SGLang workers that transfer KV and switch roles, on a machine without a GPU.

``make sglang-env`` builds their environment (``.venv-sglang``). :class:`testbed.pool.Pool` starts workers on it.
"""
