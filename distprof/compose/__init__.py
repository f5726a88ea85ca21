"""The command line, composed by Hydra from ``conf/`` into plain containers. Nothing is instantiated, nothing run."""

from __future__ import annotations

from distprof.compose.files import find_conf
from distprof.compose.jobs import Composed, compose, to_yaml
from distprof.compose.request import Request, read_request

__all__ = ["Composed", "Request", "compose", "find_conf", "read_request", "to_yaml"]
