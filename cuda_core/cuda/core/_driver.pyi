# SPDX-License-Identifier: Apache-2.0
# Made from _driver.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The way down to the driver: loading it, and turning its results into exceptions.

Modules above call ``cuda.bindings.cydriver`` themselves, without the GIL, and hand the result to :func:`check`.
"""

def ensure_usable_driver() -> None:
    """Load and initialise the driver if that is to be done, for modules that are written in Python."""
