"""This machine: its processor, what was measured on it, and the choices that follow. docs/machine.md explains them.

Each room measures what it has to choose from (`kernels/timing.py`, `training/precision.py`, `engines/timing.py`);
`measurements.py` keeps the results, and `environment.py` reads the environment variables that overrule them.
"""

from cutaway.machine.environment import VARIABLES
from cutaway.machine.environment import forced as _forced

for _variable in VARIABLES:  # a wrong value is an error even where it is not needed
    _forced(_variable)

CLEARLY = 1.3
"""The factor by which the unusual choice must be faster to be taken. A measurement
 of a few milliseconds on a busy machine
is off by less, so the choice, and with it the last bits of a result, does not depend on that moment."""
