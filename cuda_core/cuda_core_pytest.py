# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin of ``cuda.core.testing``: chooses the driver that the tests run on.

It stands outside the package, and imports nothing unless its option is given: pytest loads it in every environment in
which cuda-core is installed, and there it must cost nothing and load no driver.
"""

_OPTION = "--memory-driver"


def pytest_addoption(parser):
    parser.getgroup("cuda.core.testing", "memory resources (cuda.core.testing)").addoption(
        _OPTION,
        choices=("installed", "sim", "watched"),
        default=None,
        help="the driver to test memory resources on: the installed one; the simulated one; or the installed one with "
        "the simulated one in front of it, which counts calls and lets them fail. The last two need the package "
        "cuda-driver-sim. Not given: whatever the process loads.",
    )


def pytest_configure(config):
    choice = config.getoption(_OPTION, None)
    if choice in (None, "installed"):
        return
    import pytest

    try:
        import cuda_driver_sim

        cuda_driver_sim.activate(real=choice == "watched")
    except (ImportError, RuntimeError) as error:
        raise pytest.UsageError(f"{_OPTION}={choice}: {error}") from error


def pytest_report_header(config):
    choice = config.getoption(_OPTION, None)
    if choice is None:
        return None
    texts = {
        "installed": "the installed one",
        "sim": "simulated",
        "watched": "the installed one, with the simulated one in front of it",
    }
    return f"memory driver: {texts[choice]}"
