#include "medley/command/additions.h"

#include "medley/cli/additions.h"
#include "medley/goal/goal_options.h"
#include "medley/next_best/explain_next_best.h"

namespace medley {

const Additions& all_additions() {
  static const Additions all = {
      .plan = {{"goal", prepare_goal}},
      .explain = {{"next_best", next_best_json, next_best_text}},
  };
  return all;
}

}  // namespace medley
