# SPDX-License-Identifier: Apache-2.0
"""Run an unchanged program on the simulated driver: ``python -m cuda_driver_sim SCRIPT [ARGS]``."""

from ._command import main

if __name__ == "__main__":
    main()
