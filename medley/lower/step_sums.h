#pragma once

// Sums of a step over the devices of all stages: normalisers, norms, metrics, and rows of the whole
// batch that every device has.

#include <optional>
#include <string>
#include <vector>

#include "medley/lower/local_values.h"

namespace medley {

class StepSums {
 public:
  // Requires: both outlive this.
  StepSums(LocalGraph& graph, LocalValues& values) : graph_(graph), values_(values) {}

  // Replaces a value by its sum over the stages of these devices. A stage that does not count adds
  // zero. `what`: its name in all stages.
  void sum_over_stages(ValueId value,
                       const std::string& what,
                       const std::vector<int>& devices,
                       bool counts = true);
  // Returns the sum over stages of a local value that is whole on every device of its stage. A
  // stage without it adds a zero of this type.
  ValueId sum_over_stages(std::optional<ValueId> local,
                          const TensorType& type,
                          const std::string& what,
                          const std::vector<int>& devices);

  // Returns this device's rows of a value among zeros of all rows: a partial sum over all devices,
  // of the micro-batch. `type`: that of the sum.
  ValueId place_rows(ValueId value, const TensorType& type);
  // Returns its sum over devices. Devices without it add zeros.
  ValueId sum_rows(std::optional<ValueId> local,
                   const TensorType& type,
                   const std::string& what,
                   const std::vector<int>& devices);
  // Defines a batch input whose rows are in a buffer. Returns the local value of the buffer.
  ValueId add_carried_input(const Input& input, const std::string& buffer, const TensorType& type);

 private:
  // The position of the batch among a value's factors, and of the local rows in the whole batch.
  struct Rows {
    int position;
    Placement placement;  // cut by rows only
    Piece piece;
  };
  Rows rows_of(ValueId value, const Size& all);

  LocalGraph& graph_;
  LocalValues& values_;
};

}  // namespace medley
