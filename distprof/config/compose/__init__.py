"""Composes the command line with ``conf/`` into plain containers, using Hydra. No code is instantiated or run."""

from __future__ import annotations

from distprof.config.compose.files import find_conf
from distprof.config.compose.group import read_choice
from distprof.config.compose.jobs import Composed, compose, to_yaml
from distprof.config.compose.request import JobRequest, quote_text, read_request

__all__ = ["Composed", "JobRequest", "compose", "find_conf", "quote_text", "read_choice", "read_request", "to_yaml"]
