#include "medley/run/reshard_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/kernels/arguments.h"
#include "medley/kernels/combine.h"
#include "medley/kernels/strided.h"
#include "medley/transport/byte_messages.h"

namespace medley {
namespace {

at::Tensor as_bytes(const at::Tensor& tensor) {
  MEDLEY_CHECK(tensor.is_contiguous());
  return tensor.view({-1}).view(at::kByte);
}

// Sent bytes, in pieces, and received ones.
class Parcels {
 public:
  explicit Parcels(const ReshardPeers& peers)
      : peers_(peers),
        pieces_(peers.members.size()),
        lengths_(peers.members.size(), 0),
        next_(peers.members.size(), 0) {}

  void send(int to, const at::Tensor& piece) {
    pieces_[rank_of(to)].push_back(piece.reshape({-1}).cpu());
  }
  void expect(int from, int64_t bytes) { lengths_[rank_of(from)] += bytes; }

  // Returns the sent bytes.
  int64_t exchange() {
    Tensors sent(pieces_.size());
    int64_t bytes = 0;
    for (size_t rank = 0; rank < pieces_.size(); ++rank) {
      if (pieces_[rank].empty()) continue;
      sent[rank] = at::cat(pieces_[rank]);
      pieces_[rank].clear();
      bytes += sent[rank].numel();
    }
    received_ = exchange_bytes(peers_.group, sent, lengths_, peers_.timeout);
    return bytes;
  }

  // Returns the next received piece, in sending order.
  at::Tensor take(int from, int64_t bytes) {
    const size_t rank = rank_of(from);
    next_[rank] += bytes;
    return received_[rank].narrow(0, next_[rank] - bytes, bytes);
  }

 private:
  size_t rank_of(int device) const {
    const auto found = std::ranges::find(peers_.members, device);
    MEDLEY_CHECK(found != peers_.members.end());
    return at(found - peers_.members.begin());
  }

  const ReshardPeers& peers_;
  std::vector<Tensors> pieces_;          // [rank]
  std::vector<int64_t> lengths_, next_;  // [rank]
  Tensors received_;
};

using OwnStates = std::map<int, const KeptState*>;  // by device of this process
using OwnDevices = std::map<int, int>;              // device -> its index among a run's own

class StateResharder {
 public:
  StateResharder(const ReshardPlan& moves,
                 OwnStates before,
                 Run* after,
                 OwnDevices own,
                 const ReshardPeers* peers)
      : moves_(moves), before_(std::move(before)), after_(after), own_(std::move(own)) {
    if (peers) parcels_.emplace(*peers);
  }

  ReshardedBytes run() {
    make_shards();
    for (const ReshardMove& move : moves_.moves) {
      if (is_taken(move) && move.replica >= 0) moved_.replicas += move.bytes();
      if (is_given(move) && is_taken(move)) {
        keep(move);
      } else if (is_given(move)) {
        parcels().send(move.to, strided(as_bytes(old(move)), move.in_from));
      } else if (is_taken(move)) {
        parcels().expect(move.from, move.bytes());
        moved_.received += move.bytes();
      }
    }
    if (parcels_) moved_.sent = parcels_->exchange();
    for (const ReshardMove& move : moves_.moves)
      if (is_taken(move) && !is_given(move)) {
        const at::Tensor to = strided(as_bytes(shard(move)), move.in_to);
        to.copy_(parcels().take(move.from, move.bytes()).view(to.sizes()));
      }
    for (const auto& [key, shard] : shards_)
      after_->give_shard(value(key.second).kind, value(key.second).name, own_.at(key.first), shard);
    return moved_;
  }

 private:
  using Key = std::pair<int, int>;  // device and value

  const HeldValue& value(int v) const { return moves_.values[at(v)]; }
  bool is_given(const ReshardMove& move) const { return before_.contains(move.from); }
  bool is_taken(const ReshardMove& move) const { return own_.contains(move.to); }
  at::Tensor& shard(const ReshardMove& move) { return shards_.at({move.to, move.value}); }

  Parcels& parcels() {
    MEDLEY_CHECK(parcels_.has_value());
    return *parcels_;
  }

  at::Tensor old(const ReshardMove& move) {
    const KeptState& before = *before_.at(move.from);
    if (move.replica >= 0) return before.replicas.at(move.replica);
    at::Tensor& known = old_[{move.from, move.value}];
    if (!known.defined()) {
      const HeldValue& wanted = value(move.value);
      known = before.shards.at({wanted.kind, wanted.name}).contiguous();
      if (known.scalar_type() != to_scalar_type(wanted.dtype))
        throw Error(Blame::kCaller,
                    fmt::format("{} \"{}\": found {}, expected {} as before",
                                wanted.kind,
                                wanted.name,
                                to_string(wanted.dtype),
                                to_string(to_dtype(known.scalar_type()))));
    }
    return known;
  }

  // Values without a move have no elements, or keep the run's initial state.
  void make_shards() {
    std::set<Key> filled;
    for (const ReshardMove& move : moves_.moves)
      if (is_taken(move)) filled.insert({move.to, move.value});
    for (const auto& [device, index] : own_)
      for (int v = 0; v < static_cast<int>(moves_.values.size()); ++v)
        if (at::Tensor shard = after_->empty_shard(value(v).kind, value(v).name, index);
            shard.defined() && (filled.contains({device, v}) || shard.numel() == 0))
          shards_[{device, v}] = std::move(shard);
  }

  void keep(const ReshardMove& move) {
    moved_.kept += move.bytes();
    const at::Tensor from = old(move);
    at::Tensor& to = shard(move);
    const auto is_all = [&](const Runs& runs, const at::Tensor& of) {
      return runs.length == static_cast<int64_t>(of.nbytes());
    };
    if (move.from == move.to && move.replica < 0 && from.sizes() == to.sizes() &&
        is_all(move.in_from, from) && is_all(move.in_to, to)) {
      to = from;
      return;
    }
    strided(as_bytes(to), move.in_to)
        .copy_(strided(as_bytes(from), move.in_from)
                   .reshape(strided(as_bytes(to), move.in_to).sizes()));
  }

  const ReshardPlan& moves_;
  const OwnStates before_;
  Run* after_;
  const OwnDevices own_;  // for the new run
  std::optional<Parcels> parcels_;
  std::map<Key, at::Tensor> old_, shards_;
  ReshardedBytes moved_;
};

OwnDevices own_devices(const Run* run) {
  OwnDevices own;
  for (int i = 0; run && i < run->worker().devices().size(); ++i) own[run->cluster_device(i)] = i;
  return own;
}

KeptState hold(Run& run, int index, const std::vector<HeldValue>& values) {
  KeptState state;
  for (const HeldValue& value : values)
    if (const at::Tensor shard = run.shard(value.kind, value.name, index); shard.defined())
      state.shards[{value.kind, value.name}] = shard.detach();
  return state;
}

}  // namespace

KeptState hold(Run& run) {
  const at::NoGradGuard no_grad;
  KeptState state;
  for (const auto& [kind, name] : run.values())
    if (kind != "gradient")
      if (const at::Tensor shard = run.shard(kind, name, 0); shard.defined())
        state.shards[{kind, name}] = shard.detach();
  return state;
}

int64_t fill_replicas(KeptState& state, const StateReplicas& replicas, const ReshardPeers& peers) {
  const at::NoGradGuard no_grad;
  Parcels parcels(peers);
  for (const StateReplica& replica : replicas.replicas) {
    const HeldValue& value = replicas.values[at(replica.value)];
    if (replica.from == peers.device) {
      const at::Tensor shard = state.shards.at({value.kind, value.name}).contiguous();
      parcels.send(replica.to, strided(as_bytes(shard), replica.in_from));
    } else if (replica.to == peers.device) {
      parcels.expect(replica.from, replica.bytes());
    }
  }
  const int64_t sent = parcels.exchange();
  for (size_t h = 0; h < replicas.replicas.size(); ++h)
    if (replicas.replicas[h].to == peers.device)
      state.replicas[static_cast<int>(h)] =
          parcels.take(replicas.replicas[h].from, replicas.replicas[h].bytes());
  return sent;
}

ReshardedBytes reshard_state(const ReshardPlan& moves,
                             const KeptState& before,
                             Run* after,
                             const ReshardPeers& peers) {
  const at::NoGradGuard no_grad;
  const OwnDevices own = after ? OwnDevices{{peers.device, 0}} : OwnDevices{};
  return StateResharder(moves, {{peers.device, &before}}, after, own, &peers).run();
}

ReshardedBytes share_state(const ReshardPlan& moves,
                           Run* before,
                           Run* after,
                           const ReshardPeers* peers) {
  const at::NoGradGuard no_grad;
  std::map<int, KeptState> states;
  OwnStates own;
  for (const auto& [device, index] : own_devices(before))
    own[device] = &(states[device] = hold(*before, index, moves.values));
  return StateResharder(moves, own, after, own_devices(after), peers).run();
}

}  // namespace medley
