"""What tests of the audit share."""

import pytest


@pytest.fixture(autouse=True)
def _quickly(_quickly_compiled):
    """What the audit advises is seen in the buffers, which are assigned before LLVM sees a program."""
