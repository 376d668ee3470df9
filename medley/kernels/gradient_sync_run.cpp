#include "medley/kernels/gradient_sync_run.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/kernels/strided.h"

namespace medley {
namespace {

// Cuts each member's message into pieces, one after the other.
class Pieces {
 public:
  explicit Pieces(const Tensors& received) : received_(received), taken_(received.size()) {}

  at::Tensor next(int from, int64_t length) {
    int64_t& taken = taken_[at(from)];
    at::Tensor piece = received_[at(from)].narrow(0, taken, length);
    taken += length;
    return piece;
  }

 private:
  const Tensors& received_;
  std::vector<int64_t> taken_;
};

const SyncEnd* find(const std::vector<SyncEnd>& ends, int member) {
  for (const SyncEnd& end : ends)
    if (end.member == member) return &end;
  return nullptr;
}

Tensors joined(const std::vector<Tensors>& pieces) {
  Tensors messages(pieces.size());
  for (size_t m = 0; m < pieces.size(); ++m)
    if (!pieces[m].empty()) messages[m] = at::cat(pieces[m]);
  return messages;
}

}  // namespace

GradientSyncRun::GradientSyncRun(const GradientSync& sync,
                                 int member,
                                 Tensors inputs,
                                 at::ScalarType dtype,
                                 const at::Device& device)
    : sync_(sync),
      me_(member),
      inputs_(sync.tensors.size()),
      options_(at::TensorOptions(dtype).device(device)) {
  const std::vector<int>& tensors = sync.members.at(at(member)).inputs;
  MEDLEY_CHECK_EQ(inputs.size(), tensors.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    inputs_[at(tensors[i])] = inputs[i].contiguous().view({-1});
}

at::Tensor GradientSyncRun::packed(const SyncEnd& end, const at::Tensor& tensor) const {
  return strided(tensor, end.runs).reshape({-1});
}

Tensors GradientSyncRun::first() {
  std::vector<Tensors> pieces(sync_.members.size());
  for (size_t t = 0; t < sync_.tensors.size(); ++t)
    for (const SyncCell& cell : *sync_.tensors[t]) {
      const SyncEnd* own = find(cell.from, me_);
      if (!own) continue;
      const at::Tensor flat = packed(*own, inputs_[t]);
      for (size_t place = 0; place < cell.to.size(); ++place) {
        const auto [begin, end] = piece_of(cell, place);
        if (begin == end) continue;
        const int sums = cell.to[place].member;
        (sums == me_ ? own_ : pieces[at(sums)]).push_back(flat.narrow(0, begin, end - begin));
      }
    }
  Tensors messages = joined(pieces);
  inputs_.clear();
  return messages;
}

Tensors GradientSyncRun::second(const Tensors& received) {
  std::vector<Tensors> pieces(sync_.members.size());
  Pieces given(received);
  size_t own = 0;
  for (const auto& tensor : sync_.tensors)
    for (const SyncCell& cell : *tensor)
      for (size_t place = 0; place < cell.to.size(); ++place) {
        const int64_t length = piece_of(cell, place).size();
        if (cell.to[place].member != me_ || length == 0) continue;
        Tensors terms;
        for (const SyncEnd& end : cell.from)
          terms.push_back(end.member == me_ ? own_[own++] : given.next(end.member, length));
        sums_.push_back(reduce_in_order(terms, Reduce::kSum));
        for (const SyncEnd& end : cell.to)
          if (end.member != me_ && goes_to(cell, place, end.member))
            pieces[at(end.member)].push_back(sums_.back());
      }
  own_.clear();
  return joined(pieces);
}

Tensors GradientSyncRun::outputs(const Tensors& received) {
  Tensors all;
  Pieces given(received);
  size_t own = 0;
  for (size_t t = 0; t < sync_.tensors.size(); ++t) {
    const SyncTensor& tensor = *sync_.tensors[t];
    const std::vector<int>& wanted = sync_.members[at(me_)].outputs;
    if (std::find(wanted.begin(), wanted.end(), static_cast<int>(t)) == wanted.end()) continue;
    all.push_back(at::empty({taken(tensor, me_)}, options_));
    for (const SyncCell& cell : tensor) {
      const SyncEnd* mine = find(cell.to, me_);
      if (!mine) continue;
      Tensors pieces;
      for (size_t place = 0; place < cell.to.size(); ++place) {
        if (!goes_to(cell, place, me_)) continue;
        const int64_t length = piece_of(cell, place).size();
        const int sums = cell.to[place].member;
        if (length > 0) pieces.push_back(sums == me_ ? sums_[own++] : given.next(sums, length));
      }
      at::Tensor target = strided(all.back(), mine->runs);
      target.copy_(at::cat(pieces).view(target.sizes()));
    }
  }
  sums_.clear();
  return all;
}

std::vector<Tensors> run_together(std::vector<GradientSyncRun>& members) {
  // [from][to] as sent -> as received.
  const auto exchanged = [](const std::vector<Tensors>& sent) {
    std::vector<Tensors> received(sent.size(), Tensors(sent.size()));
    for (size_t from = 0; from < sent.size(); ++from)
      for (size_t to = 0; to < sent.size(); ++to)
        if (sent[from][to].defined()) received[to][from] = sent[from][to];
    return received;
  };
  std::vector<Tensors> messages, outputs;
  for (GradientSyncRun& member : members) messages.push_back(member.first());
  std::vector<Tensors> received = exchanged(messages);
  for (size_t m = 0; m < members.size(); ++m) messages[m] = members[m].second(received[m]);
  received = exchanged(messages);
  for (size_t m = 0; m < members.size(); ++m) outputs.push_back(members[m].outputs(received[m]));
  return outputs;
}

}  // namespace medley
