# SPDX-License-Identifier: Apache-2.0
"""Run a program and record its memory: ``python -m cuda.core.audit [OPTIONS] SCRIPT [ARGS]``."""

from cuda.core.audit._command import main

if __name__ == "__main__":
    main()
