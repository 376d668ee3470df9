#include "medley/torch/state_moves.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/torch/arguments.h"
#include "medley/torch/byte_messages.h"
#include "medley/torch/combine.h"
#include "medley/torch/strided.h"

namespace medley {
namespace {

at::Tensor as_bytes(const at::Tensor& tensor) {
  MEDLEY_CHECK(tensor.is_contiguous());
  return tensor.view({-1}).view(at::kByte);
}

class Mover {
 public:
  Mover(const Moves& moves, int device, Run* before, Run* after)
      : moves_(moves), device_(device), before_(before), after_(after) {}

  MovedBytes run(const std::string& group,
                 const std::vector<int>& members,
                 std::chrono::milliseconds timeout) {
    make_shards();
    for (const Move& move : moves_.moves)
      if (move.from == device_ && move.to == device_) keep(move);
    Tensors sent(members.size());
    std::vector<int64_t> lengths;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      lengths.push_back(bytes_between(members[rank], device_));
      moved_.received += lengths.back();
      if (bytes_between(device_, members[rank]) == 0) continue;
      sent[rank] = packed(members[rank]);
      moved_.sent += sent[rank].numel();
    }
    const Tensors received = exchange_bytes(group, sent, lengths, timeout);
    for (size_t rank = 0; rank < members.size(); ++rank)
      if (received[rank].defined()) unpack(members[rank], received[rank]);
    for (const auto& [v, shard] : shards_) after_->give_shard(value(v).kind, value(v).name, shard);
    return moved_;
  }

 private:
  const HeldValue& value(int v) const { return moves_.values[at(v)]; }

  bool is_of_others(const Move& move, int from, int to) const {
    return from != to && move.from == from && move.to == to;
  }

  int64_t bytes_between(int from, int to) const {
    int64_t bytes = 0;
    for (const Move& move : moves_.moves)
      if (is_of_others(move, from, to)) bytes += move.bytes();
    return bytes;
  }

  at::Tensor old(int v) {
    at::Tensor& known = old_[v];
    if (!known.defined()) {
      known = before_->shard(value(v).kind, value(v).name, 0).detach().contiguous();
      if (known.scalar_type() != to_scalar_type(value(v).dtype))
        throw Error(Blame::kCaller,
                    fmt::format("{} \"{}\": found {}, expected {} as before",
                                value(v).kind,
                                value(v).name,
                                to_string(value(v).dtype),
                                to_string(to_dtype(known.scalar_type()))));
    }
    return known;
  }

  void make_shards() {
    if (!after_) return;
    for (int v = 0; v < static_cast<int>(moves_.values.size()); ++v)
      if (at::Tensor shard = after_->empty_shard(value(v).kind, value(v).name); shard.defined())
        shards_[v] = std::move(shard);
  }

  void keep(const Move& move) {
    moved_.kept += move.bytes();
    const at::Tensor from = old(move.value);
    at::Tensor& to = shards_.at(move.value);
    const auto is_all = [&](const Runs& runs, const at::Tensor& of) {
      return runs.length == static_cast<int64_t>(of.nbytes());
    };
    if (from.sizes() == to.sizes() && is_all(move.in_from, from) && is_all(move.in_to, to)) {
      to = from;
      return;
    }
    strided(as_bytes(to), move.in_to)
        .copy_(strided(as_bytes(from), move.in_from)
                   .reshape(strided(as_bytes(to), move.in_to).sizes()));
  }

  at::Tensor packed(int to) {
    Tensors pieces;
    for (const Move& move : moves_.moves)
      if (is_of_others(move, device_, to))
        pieces.push_back(strided(as_bytes(old(move.value)), move.in_from).reshape({-1}).cpu());
    return at::cat(pieces);
  }

  void unpack(int from, const at::Tensor& bytes) {
    int64_t next = 0;
    for (const Move& move : moves_.moves) {
      if (!is_of_others(move, from, device_)) continue;
      const at::Tensor to = strided(as_bytes(shards_.at(move.value)), move.in_to);
      to.copy_(bytes.narrow(0, next, move.bytes()).view(to.sizes()));
      next += move.bytes();
    }
  }

  const Moves& moves_;
  const int device_;
  Run *before_, *after_;
  std::map<int, at::Tensor> old_, shards_;  // by value
  MovedBytes moved_;
};

}  // namespace

MovedBytes move_state(const Moves& moves,
                      int device,
                      Run* before,
                      Run* after,
                      const std::string& group,
                      const std::vector<int>& members,
                      std::chrono::milliseconds timeout) {
  const at::NoGradGuard no_grad;
  return Mover(moves, device, before, after).run(group, members, timeout);
}

}  // namespace medley
