"""cutaway side by side with its peers, on the same work and the same machine: `python -m bench.forward`."""

import os

os.environ.setdefault("CUTAWAY_DEVICE", "cpu")  # where the peers run
