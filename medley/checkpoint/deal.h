#pragma once

// Who writes what of a checkpoint: each element once, by one of those who hold it, and everybody
// about as much as the others. All processes of a run find the same, from the program alone.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "medley/checkpoint/held_values.h"
#include "medley/checkpoint/manifest.h"

namespace medley {

// A box of a stored value, and who writes it.
struct DealtBox {
  int value = 0;   // into held values, and into Deal::values
  int box = 0;     // of the stored value
  int holder = 0;  // of HeldValue::stages
  int device = 0;  // of that stage's mesh
};

struct Deal {
  std::vector<StoredValue> values;  // files: [box] the writer, an index into `writers`
  std::vector<int> writers;         // devices of the program that write, among those of all stages
  std::vector<std::vector<DealtBox>> boxes;  // [writer] by value and box
};

// Of what is more than a device's share pieces are made, of at least `least_bytes` each.
// `devices`: [stage] of its mesh. Throws Error(kCaller) if nobody holds some elements of a value.
Deal deal(const std::vector<HeldValue>& values,
          const std::vector<int>& devices,
          int64_t least_bytes = 1 << 20);

// Of all that a program keeps: found once, and the same for every checkpoint of a run.
struct ProgramDeal {
  std::vector<HeldValue> held;
  std::vector<int> devices;  // [stage] of its mesh
  Deal deal;
};
ProgramDeal deal(const Program& program);
// The same for the values `among`, by kind and name: one of several programs over one state. Names
// of its optimizer's state begin with `prefix` in a checkpoint.
using ValueNames = std::set<std::pair<std::string, std::string>>;
ProgramDeal deal(const Program& program, const ValueNames& among, const std::string& prefix);
// What each device holds while it writes its boxes, in bytes: all that it has of their values. By
// its number among those of all stages.
std::vector<int64_t> held_bytes(const ProgramDeal& dealt);

}  // namespace medley
