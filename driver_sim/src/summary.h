// SPDX-License-Identifier: Apache-2.0
// What the top process says at the end: what was left live or refused, by itself and by those it has started.
#pragma once

#include <string>

namespace sim {

// Nothing when there is nothing to say. `left` says whether any process has left something live.
std::string summary(bool &left);

}  // namespace sim
