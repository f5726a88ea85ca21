"""Composes the command line with ``conf/`` into plain containers, using Hydra. No code is instantiated or run."""

from __future__ import annotations

from distprof.config.compose.jobs import Composed, compose, to_yaml
from distprof.config.compose.request import JobRequest, quote_text, read_request

__all__ = ["Composed", "JobRequest", "compose", "quote_text", "read_request", "to_yaml"]
