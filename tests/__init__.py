"""Tests run on the CPU, also where there is a GPU: what they expect was computed there."""

import os

os.environ.setdefault("CUTAWAY_DEVICE", "cpu")
