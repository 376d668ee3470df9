#pragma once

// The write plan of a checkpoint: one of the holders of each element writes it, and all writers
// have about equal shares. Every process derives the same plan from the program alone.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "medley/checkpoint/held_values.h"
#include "medley/checkpoint/manifest.h"

namespace medley {

// A box of a stored value, and its writer.
struct BoxWrite {
  int value = 0;   // into held values, and into Deal::values
  int box = 0;     // index in the stored value
  int holder = 0;  // index into HeldValue::stages
  int device = 0;  // index in that stage's mesh
};

struct WritePlan {
  std::vector<StoredValue> values;  // files: [box] the writer, an index into `writers`
  std::vector<int> writers;         // devices of the program that write, numbered over all stages
  std::vector<std::vector<BoxWrite>> boxes;  // [writer] by value and box
};

// Splits boxes larger than a device's share into pieces of at least `least_bytes` bytes. `devices`:
// [stage] devices of its mesh. Throws Error(kCaller) if no device stores some elements of a value.
WritePlan plan_writes(const std::vector<HeldValue>& values,
                      const std::vector<int>& devices,
                      int64_t least_bytes = 1 << 20);

// The write plan of all kept values of a program, the same for every checkpoint of a run.
struct ProgramWritePlan {
  std::vector<HeldValue> held;
  std::vector<int> devices;  // [stage] devices of its mesh
  WritePlan write_plan;
};
ProgramWritePlan plan_writes(const Program& program);
// Like ProgramWritePlan for the values `among` (kind, name) only: one of several programs over one
// state. A checkpoint's names of its optimizer state begin with `prefix`.
using ValueNames = std::set<std::pair<std::string, std::string>>;
ProgramWritePlan plan_writes(const Program& program,
                             const ValueNames& among,
                             const std::string& prefix);
// Returns the bytes that each device keeps for the values it writes, by its number over all stages.
std::vector<int64_t> held_bytes(const ProgramWritePlan& planned);

}  // namespace medley
