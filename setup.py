"""The tag of a wheel. Everything else about the package is in pyproject.toml.

The compiled parts are optional. If no compiler has built them, the wheel holds Python alone and is
tagged for any Python 3 on any platform. Setuptools by itself would tag it for this machine.
"""

from __future__ import annotations

import os

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """A wheel that is tagged after what it holds."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag. It is asked for once the files of the wheel are there."""
        outputs = self.get_finalized_command("build_ext").get_outputs()
        self.root_is_pure = not any(os.path.exists(path) for path in outputs)
        return super().get_tag()


setup(cmdclass={"bdist_wheel": Wheel})
