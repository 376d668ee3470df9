#pragma once

// Sums of what several have of the same tensors, each in its own way: every element is summed in
// one place, and the sum goes to whoever wants it, so that all have the same bits. Two rounds of
// messages, from each to each:
//
//   a weight of 12 rows, halves on a0 and a1, thirds on b0, b1 and b2
//
//   cell               rows     first round: pieces to who sums     second: sums to who lacks them
//   0   a0 b0          0 - 4    a0 -> b0 half, b0 -> a0 half         b0 -> a0, a0 -> b0
//   1   a0 b1          4 - 6    ...
//
// A cell goes in as many even pieces as there are devices that want it, each of which sums one: as
// few bytes as an all-reduce among them would send. If its only giver is one of these, the others
// divide it and send the pieces to each other: as few bytes as an all-gather, and the giver sends
// each element once. Knows no dtypes; members are numbers.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "medley/boxes/layout.h"
#include "medley/boxes/runs.h"

namespace medley {

// What a member has of a cell: where it lies in the member's own tensor, counted in elements.
struct RelayEnd {
  int member = 0;
  Runs runs;
  bool operator==(const RelayEnd&) const = default;
};

struct RelayCell {
  int64_t length = 0;              // elements
  std::vector<RelayEnd> from, to;  // ascending; neither is empty
  bool operator==(const RelayCell&) const = default;
};

using RelayTensor = std::vector<RelayCell>;  // apart, together the whole

// Which of the tensors a member puts in and gets out, ascending. Of what it puts in it may give
// nothing.
struct RelayMember {
  std::vector<int> inputs, outputs;
};

// Carries gradients or new values of parameters. Tensors of equal layouts may share cells.
struct Relay {
  std::vector<RelayMember> members;
  std::vector<std::shared_ptr<const RelayTensor>> tensors;
  enum class Of : uint8_t { kGradients, kNewValues } of = Of::kGradients;
};

// One that has a tensor on devices of its own, which are members from `first_member` on. Of several
// devices that have the same, the first gives and all take. Who gives in one layout and takes in
// another is two holders with the same members.
struct RelayHolder {
  Layout layout;
  int first_member = 0;
  bool gives = true;
  bool takes = true;
  std::string name{};  // for errors
  bool whole = true;   // it has all of the tensor; else a share, as others have others
};

// Throws Error(kCaller) as cells_of() does, if a holder of the whole has not all of the tensor, or
// if nobody gives an element or nobody takes it.
RelayTensor relay_tensor(const std::vector<RelayHolder>& holders);

// [begin, end) of a cell that `to[place]` sums. A member that alone gives the cell, and takes it,
// keeps all of it: the others divide the cell among them.
IndexInterval piece_of(const RelayCell& cell, size_t place);

// Returns whether `member`, which takes the cell, has the sum of this piece from `to[place]`. False
// between a member that keeps the cell and the others: it sends terms only, and receives nothing.
bool goes_to(const RelayCell& cell, size_t place, int member);

// Elements of a tensor that a member gives, or takes. 0: it does not take part in it.
int64_t given(const RelayTensor& tensor, int member);
int64_t taken(const RelayTensor& tensor, int member);

// Elements that travel in each round, [from * members + to]: none to oneself.
struct RelayTraffic {
  std::vector<int64_t> first, second;
};
RelayTraffic traffic_of(const Relay& relay);

// Throws Error(kUs) "<place>: found ..., expected ..." unless in each tensor every element that a
// member has is in one cell, and every cell is of members in rising order that have as many
// elements of it, put it in and get it out.
void verify(const Relay& relay, const std::string& place);

}  // namespace medley
