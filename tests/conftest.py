"""What tests of threads share."""

import sys

import pytest


@pytest.fixture
def _switching_often():
    """Other threads get their turn at almost every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
