"""cutaway side by side with its peers, on the same work and the same machine: `python -m bench.forward`."""
