"""Prorsa moves SGLang workers between prefill and decode while an agentic-RL rollout runs."""

__version__ = "0.1.0"
