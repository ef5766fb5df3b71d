# SPDX-License-Identifier: Apache-2.0
"""The exceptions and the warning of this package."""

__all__ = ["CUDAError", "CUDAWarning", "OwnershipError"]


class CUDAError(Exception):
    """A CUDA driver call was refused.

    Attributes
    ----------
    result : int
        The driver's result code (``CUresult``), 0 where there is none.
    result_name : str
        Its name, such as ``"CUDA_ERROR_OUT_OF_MEMORY"``.
    function : str
        The driver function that answered, such as ``"cuMemMap"``.
    """

    result: int = 0
    result_name: str = ""
    function: str = ""


class CUDAWarning(UserWarning):
    """A release that nobody could be told of by an exception did not succeed.

    It is reported once for each allocation, by a collection or by a call whose main work was done. The text names
    the allocation and its resource, and why it stays allocated: what the driver or a ``deallocate`` has answered, or
    that a close before has failed, which has raised that.
    """


class OwnershipError(RuntimeError):
    """An operation that the ownership state of a buffer does not allow.

    The text tells the state and, for a buffer that was transferred, where the allocation went.
    """
