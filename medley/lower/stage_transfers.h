#pragma once

// Sends values to other stages and receives theirs (crossing.h).

#include <map>
#include <vector>

#include "medley/lower/local_values.h"

namespace medley {

class StageTransfers {
 public:
  // Requires: both outlive this.
  StageTransfers(LocalGraph& graph, LocalValues& values) : graph_(graph), values_(values) {}

  void send(ValueId value, const Crossing& crossing);
  // Makes the value available in its assigned placement, with the wait at its first reader.
  void receive(ValueId value, const Crossing& crossing);
  // Receives in the forward phase new values of buffers without a reader there. Ops of the backward
  // phase read them, and buffers carry them.
  void receive_new_values();

 private:
  struct Awaited {
    int communication;
    Crossing crossing;
    std::vector<Size> lengths;  // in the dim that the sender cuts
  };
  void finish(ValueId value);

  LocalGraph& graph_;
  LocalValues& values_;
  std::map<ValueId, Awaited> receiving_;
};

}  // namespace medley
