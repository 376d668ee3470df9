#pragma once

#include "medley/lower/connect.h"

namespace medley {

// Returns the program of the devices of one stage.
LoweredStage lower_stage(const DecidedStage& decided,
                         const Connections& connections,
                         int64_t global_batch,
                         const LowerOptions& options);

}  // namespace medley
