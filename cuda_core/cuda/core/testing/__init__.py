# SPDX-License-Identifier: Apache-2.0
"""Tests that every memory resource has to pass, for its author to run.

Derive a class whose name begins with ``Test`` from :class:`MemoryResourceTests`, say how a resource is made, and run
pytest:

.. code-block:: python

    from cuda.core.testing import MemoryResourceTests
    from my_package import MyResource


    class TestMyResource(MemoryResourceTests):
        def make_resource(self):
            return MyResource()

``pytest --memory-driver=sim`` runs it on the simulated driver, where each driver call of the resource is also made to
fail in turn; ``--memory-driver=watched`` does that on a GPU, and without the option it runs on the GPU as it is.

Needs pytest and hypothesis: ``pip install '.[testing]'`` in the checkout. (By its name, pip would install the released
cuda-core, which has no such kit.)
"""

try:
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"cuda.core.testing needs pytest and hypothesis ({error}): pip install pytest hypothesis"
    ) from error

from cuda.core.testing._contract import ContractBroken
from cuda.core.testing._machine import MemoryResourceMachine
from cuda.core.testing._suite import MemoryResourceTests

__all__ = ["ContractBroken", "MemoryResourceMachine", "MemoryResourceTests"]
