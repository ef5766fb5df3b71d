// SPDX-License-Identifier: Apache-2.0
// Makes the library pass through to a real driver, and makes all functions of a driver known to dlsym.
//
// Functions that are not simulated have no entry of ours to count in. Each is an indirect function: who looks
// it up gets the real driver's, or null when that does not export it. A weak one gives way to the function of
// the same name that the rest of the library defines, so that this list may name all that cuda.h declares.
#include "../passthrough.h"

extern "C" const char cuda_driver_sim_is_front[] = "in front of a real driver";

using Entry = void (*)();

#define ENTRY(symbol)                                                      \
    extern "C" __attribute__((used)) Entry find_##symbol() {               \
        return reinterpret_cast<Entry>(::sim::exported_by_real(#symbol));  \
    }                                                                      \
    asm(".weak " #symbol "\n"                                              \
        ".type " #symbol ", %gnu_indirect_function\n"                      \
        ".set " #symbol ", find_" #symbol "\n");

// ENTRY(name) for each function, made from cuda.h by setup.py.
#include "entries.inc"
