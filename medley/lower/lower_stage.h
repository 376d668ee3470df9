#pragma once

#include "medley/lower/connect.h"

namespace medley {

// Returns what the devices of one stage execute.
LoweredStage lower_stage(const DecidedStage& decided,
                         const Connections& connections,
                         int64_t global_batch,
                         const LowerOptions& options);

}  // namespace medley
