#pragma once

// Gradient sync between pipelines: sums the same tensors over holders with different layouts. One
// member sums each element and sends the sum to every taker, so all have equal bits. Two all-to-all
// rounds:
//
//   a weight of 12 rows, halves on a0 and a1, thirds on b0, b1 and b2
//
//   cell               rows     first round: pieces to be summed      second: sums to the takers
//   0   a0 b0          0 - 4    a0 -> b0 half, b0 -> a0 half         b0 -> a0, a0 -> b0
//   1   a0 b1          4 - 6    ...
//
// A cell is cut into as many even pieces as there are takers, each of which sums one piece. The
// traffic is that of an all-reduce among them. If the only giver is a taker too, the other takers
// divide the cell and exchange pieces. The traffic is then that of an all-gather, and the giver
// sends each element once. Knows no dtypes; members are numbers.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "medley/boxes/layout.h"
#include "medley/boxes/runs.h"

namespace medley {

// A member's part of a cell: its position in the member's own tensor, in elements.
struct SyncEnd {
  int member = 0;
  Runs runs;
  bool operator==(const SyncEnd&) const = default;
};

struct SyncCell {
  int64_t length = 0;             // elements
  std::vector<SyncEnd> from, to;  // ascending; neither is empty
  bool operator==(const SyncCell&) const = default;
};

using SyncTensor = std::vector<SyncCell>;  // disjoint, together the whole

// The tensors that a member puts in and gets out, ascending. It may give no element of an input.
struct SyncMember {
  std::vector<int> inputs, outputs;
};

// Carries gradients or new values of parameters. Tensors with equal layouts may share cells.
struct GradientSync {
  std::vector<SyncMember> members;
  std::vector<std::shared_ptr<const SyncTensor>> tensors;
  enum class Of : uint8_t { kGradients, kNewValues } of = Of::kGradients;
};

// A holder of a tensor on its own devices, which are members from `first_member` on. The first of
// several replicas gives, and all take. A member that gives in one layout and takes in another is
// two holders.
struct SyncHolder {
  Layout layout;
  int first_member = 0;
  bool gives = true;
  bool takes = true;
  std::string name{};  // for errors
  bool whole = true;   // it stores the whole tensor; else a share of it
};

// Throws Error(kCaller) as cells_of() does, if a holder of the whole lacks elements, or if an
// element has no giver or no taker.
SyncTensor sync_tensor(const std::vector<SyncHolder>& holders);

// Returns the interval of a cell that `to[place]` sums. The only giver of a cell, if it takes it
// too, keeps all of it, and the others divide the cell.
IndexInterval piece_of(const SyncCell& cell, size_t place);

// Returns whether `member`, which takes the cell, gets the sum of this piece from `to[place]`.
// False between a member that keeps the cell and the others: it only sends terms.
bool goes_to(const SyncCell& cell, size_t place, int member);

// Returns the elements of a tensor that a member gives, or takes; 0 if it does not take part.
int64_t given(const SyncTensor& tensor, int member);
int64_t taken(const SyncTensor& tensor, int member);

// Elements per round, [from * members + to], without those for the sender itself.
struct SyncTraffic {
  std::vector<int64_t> first, second;
};
SyncTraffic traffic_of(const GradientSync& sync);

// Throws Error(kUs) "<place>: found ..., expected ..." unless each tensor has every element of a
// member in one cell, and the members of each cell ascend, have as many elements of it, put it in
// and get it out.
void verify(const GradientSync& sync, const std::string& place);

}  // namespace medley
