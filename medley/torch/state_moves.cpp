#include "medley/torch/state_moves.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

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

// Bytes that go to others, in pieces, and those that come.
class Parcels {
 public:
  explicit Parcels(const MovePeers& peers)
      : peers_(peers),
        pieces_(peers.members.size()),
        lengths_(peers.members.size(), 0),
        next_(peers.members.size(), 0) {}

  void send(int to, const at::Tensor& piece) {
    pieces_[rank_of(to)].push_back(piece.reshape({-1}).cpu());
  }
  void expect(int from, int64_t bytes) { lengths_[rank_of(from)] += bytes; }

  // Returns the bytes sent.
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

  // The next piece of what has come, in the order in which it was sent.
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

  const MovePeers& peers_;
  std::vector<Tensors> pieces_;          // [rank]
  std::vector<int64_t> lengths_, next_;  // [rank]
  Tensors received_;
};

class Mover {
 public:
  Mover(const Moves& moves, const KeptState& before, Run* after, const MovePeers& peers)
      : moves_(moves), device_(peers.device), before_(before), after_(after), parcels_(peers) {}

  MovedBytes run() {
    make_shards();
    for (const Move& move : moves_.moves) {
      if (move.to == device_ && move.home >= 0) moved_.homes += move.bytes();
      if (move.from == device_ && move.to == device_) {
        keep(move);
      } else if (move.from == device_) {
        parcels_.send(move.to, strided(as_bytes(old(move)), move.in_from));
      } else if (move.to == device_) {
        parcels_.expect(move.from, move.bytes());
        moved_.received += move.bytes();
      }
    }
    moved_.sent = parcels_.exchange();
    for (const Move& move : moves_.moves)
      if (move.to == device_ && move.from != device_) {
        const at::Tensor to = strided(as_bytes(shards_.at(move.value)), move.in_to);
        to.copy_(parcels_.take(move.from, move.bytes()).view(to.sizes()));
      }
    for (const auto& [v, shard] : shards_) after_->give_shard(value(v).kind, value(v).name, shard);
    return moved_;
  }

 private:
  const HeldValue& value(int v) const { return moves_.values[at(v)]; }

  at::Tensor old(const Move& move) {
    if (move.home >= 0) return before_.homes.at(move.home);
    at::Tensor& known = old_[move.value];
    if (!known.defined()) {
      const HeldValue& wanted = value(move.value);
      known = before_.shards.at({wanted.kind, wanted.name}).contiguous();
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

  // What no move fills is without elements, or stays as the run has begun it.
  void make_shards() {
    if (!after_) return;
    std::set<int> filled;
    for (const Move& move : moves_.moves)
      if (move.to == device_) filled.insert(move.value);
    for (int v = 0; v < static_cast<int>(moves_.values.size()); ++v)
      if (at::Tensor shard = after_->empty_shard(value(v).kind, value(v).name, 0);
          shard.defined() && (filled.contains(v) || shard.numel() == 0))
        shards_[v] = std::move(shard);
  }

  void keep(const Move& move) {
    moved_.kept += move.bytes();
    const at::Tensor from = old(move);
    at::Tensor& to = shards_.at(move.value);
    const auto is_all = [&](const Runs& runs, const at::Tensor& of) {
      return runs.length == static_cast<int64_t>(of.nbytes());
    };
    if (move.home < 0 && from.sizes() == to.sizes() && is_all(move.in_from, from) &&
        is_all(move.in_to, to)) {
      to = from;
      return;
    }
    strided(as_bytes(to), move.in_to)
        .copy_(strided(as_bytes(from), move.in_from)
                   .reshape(strided(as_bytes(to), move.in_to).sizes()));
  }

  const Moves& moves_;
  const int device_;
  const KeptState& before_;
  Run* after_;
  Parcels parcels_;
  std::map<int, at::Tensor> old_, shards_;  // by value
  MovedBytes moved_;
};

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

int64_t fill_homes(KeptState& state, const SecondHomes& homes, const MovePeers& peers) {
  const at::NoGradGuard no_grad;
  Parcels parcels(peers);
  for (const SecondHome& home : homes.homes) {
    const HeldValue& value = homes.values[at(home.value)];
    if (home.from == peers.device) {
      const at::Tensor shard = state.shards.at({value.kind, value.name}).contiguous();
      parcels.send(home.to, strided(as_bytes(shard), home.in_from));
    } else if (home.to == peers.device) {
      parcels.expect(home.from, home.bytes());
    }
  }
  const int64_t sent = parcels.exchange();
  for (size_t h = 0; h < homes.homes.size(); ++h)
    if (homes.homes[h].to == peers.device)
      state.homes[static_cast<int>(h)] = parcels.take(homes.homes[h].from, homes.homes[h].bytes());
  return sent;
}

MovedBytes move_state(const Moves& moves,
                      const KeptState& before,
                      Run* after,
                      const MovePeers& peers) {
  const at::NoGradGuard no_grad;
  return Mover(moves, before, after, peers).run();
}

}  // namespace medley
