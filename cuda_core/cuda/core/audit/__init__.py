# SPDX-License-Identifier: Apache-2.0
"""Record where memory is allocated, what becomes of it, and what was never returned.

``with record(html="memory.html"):`` records a block; ``python -m cuda.core.audit SCRIPT`` or the environment variable
``CUDA_CORE_AUDIT`` a whole program.
"""

from cuda.core.audit._recording import Recording, record
from cuda.core.audit._report import AuditedAllocation, AuditedResource, AuditReport, Frame, Step

__all__ = ["AuditReport", "AuditedAllocation", "AuditedResource", "Frame", "Recording", "Step", "record"]
