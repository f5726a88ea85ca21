"""Run by hatchling, which builds the package: compiles what an editable installation leaves in the checkout.

pip compiles what it copies, and this is not copied. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each
rank would compile it at every start: 0.4 s of a core.
"""

import compileall
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileEditable(BuildHookInterface):  # type: ignore[type-arg]
    """See above. Where nothing can be written, nothing is compiled."""

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """``version``: "editable", or "standard"."""
        if version == "editable":
            compileall.compile_dir(Path(self.root) / "distprof", quiet=2)
