#pragma once

// Several micro-batches of a stage at once: one computes while what others exchange is under way.
// Calls next to each other are cut in front of the waits for what is of a micro-batch, and their
// parts take turns:
//
//   in turn   c0 p....w c1 p....w c2 c0 p....w c1 p....w c2   p: posts an exchange, w: has
//                                                             awaited it
//   woven     c0 p c0 p w c1 p w c1 p w c2 w c2               what one waits for travels
//             0    1    0      1      0    1                  while the other computes
//
// Earlier micro-batches stay ahead, so that sums over micro-batches add in the same order: results
// have the same bits.

#include <string>

#include "medley/program/program.h"

namespace medley {

// Cuts forwards, and backwards, of `at_once` micro-batches next to each other into such parts.
// Calls stay whole that wait for nothing, that replace values, and that `at_once` leaves over.
// Requires: at_once >= 1, and whole calls.
void weave(LoweredStage& stage, int at_once);

// Throws Error(kUs), naming the call: parts that do not make up whole functions, among which others
// come than those of the same function (and forward calls among parts of backward ones), that wait
// for what another micro-batch has posted, or that read or write what is of the step in another
// order than the calls would, whole, where their first parts are.
void verify_weave(const LoweredStage& stage, const std::string& place);

}  // namespace medley
