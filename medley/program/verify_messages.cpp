// verify_messages(): compares both ends of each message.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/program/lanes.h"
#include "medley/program/symbols_read.h"
#include "medley/program/verify_parts.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

std::string place_of(size_t stage, const Communication& communication) {
  return fmt::format("{}: {}", stage_name(stage), communication.name);
}

int64_t elements(const LoweredStage& stage, ValueId value, const std::vector<int64_t>& table) {
  int64_t count = 1;
  for (const Size& size : type_of(stage.graph, value).shape) count *= evaluate(size, table);
  return count;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// One communication among the devices of a group, in one micro-batch.
class GroupVerifier {
 public:
  GroupVerifier(const LoweredStage& stage,
                const Communication& communication,
                std::string place,
                const std::vector<int>& group,
                int microbatch)
      : stage_(stage), communication_(communication), place_(std::move(place)), group_(group) {
    for (int device : group) {
      const std::vector<int64_t>& table = stage.tables[at(microbatch)][at(device)];
      Ends& ends = ends_.emplace_back();
      for (ValueId value : communication.inputs)
        ends.inputs.push_back(elements(stage, value, table));
      for (ValueId value : communication.outputs)
        ends.outputs.push_back(elements(stage, value, table));
      ends.send = evaluate_all(communication.send, table);
      ends.receive = evaluate_all(communication.receive, table);
    }
  }

  void run() {
    const CommunicationTraits& traits = traits_of(communication_.kind);
    const bool sends = traits.sends, receives = traits.receives;
    for (size_t p = 0; p < ends_.size(); ++p) {
      const Ends& own = ends_[p];
      expect_equal(p, "messages to send", own.send.size(), sends ? group_.size() : 0);
      expect_equal(p, "messages to receive", own.receive.size(), receives ? group_.size() : 0);
      if (traits.is_whole()) {
        expect_equal(p, "elements as in the first device", own.inputs, ends_[0].inputs);
        expect_equal(p, "elements of the result", own.outputs, own.inputs);
        continue;
      }
      expect_equal(p, "elements sent", own.inputs[0], sends ? sum(own.send) : own.receive[p]);
      expect_equal(
          p, "elements received", own.outputs[0], receives ? sum(own.receive) : own.send[p]);
      if (!traits.is_pairwise()) {
        expect_equal(p, "lengths as in the first device", own.receive, ends_[0].receive);
        expect_equal(p, "lengths as in the first device", own.send, ends_[0].send);
        continue;
      }
      for (size_t q = 0; q < p; ++q) {
        expect_equal(p, "elements from another", own.receive[q], ends_[q].send[p]);
        expect_equal(q, "elements from another", ends_[q].receive[p], own.send[q]);
      }
    }
  }

 private:
  struct Ends {
    std::vector<int64_t> inputs, outputs, send, receive;
  };

  template <typename T>
  void expect_equal(size_t member, const char* what, const T& found, const T& expected) const {
    if (found == expected) return;
    refuse_program(fmt::format("{}: device {}", place_, stage_.devices[at(group_[member])]),
                   fmt::format("{}: found {}, expected {}", what, found, expected));
  }

  const LoweredStage& stage_;
  const Communication& communication_;
  const std::string place_;
  const std::vector<int>& group_;
  std::vector<Ends> ends_;  // [member]
};

void verify_tensors(const LoweredStage& stage,
                    const Communication& communication,
                    const std::string& place) {
  const std::vector<ValueId>&from = communication.inputs, &to = communication.outputs;
  for (const auto* values : {&from, &to})
    for (ValueId value : *values)
      expect_program(stage.bf16_as.empty() || type_of(stage.graph, value).dtype != DType::kBF16,
                     place,
                     "found bf16 between devices of which some compute in another type, "
                     "expected {}",
                     to_string(wire_type(stage.bf16_as)));
  if (communication.kind == CommunicationKind::kTransfer) {
    expect_program(from.size() + to.size() == 1,
                   place,
                   "found {} inputs and {} outputs, expected one of either",
                   from.size(),
                   to.size());
    return;
  }
  const bool sync = communication.kind == CommunicationKind::kGradientSync;
  expect_program(sync ? from.size() + to.size() > 0
                      : !from.empty() && from.size() == to.size() &&
                            (from.size() == 1 || traits_of(communication.kind).is_whole()),
                 place,
                 "found {} inputs and {} outputs",
                 from.size(),
                 to.size());
  const DType expected = type_of(stage.graph, any_value(communication)).dtype;
  for (const auto* values : {&from, &to})
    for (ValueId value : *values) {
      const DType found = type_of(stage.graph, value).dtype;
      expect_program(found == expected,
                     place,
                     "found {} and {}, expected one dtype",
                     to_string(found),
                     to_string(expected));
    }
}

// Checks the collectives of a stage's mesh.
void verify_mesh(const LoweredStage& stage, size_t s, const std::vector<int>& identical) {
  for (const Communication& communication : stage.communications) {
    const std::string place = place_of(s, communication);
    verify_tensors(stage, communication, place);
    if (!communication.devices.empty()) continue;
    expect_program(communication.kind != CommunicationKind::kTransfer, place, "found no devices");
    const int axis = communication.axis;
    expect_program(axis == kWholeMesh || (axis >= 0 && at(axis) < stage.mesh.size()),
                   place,
                   "found axis {} of a mesh of {}",
                   axis,
                   stage.mesh.size());
    for (int device = 0; device < static_cast<int>(stage.devices.size()); ++device) {
      const std::vector<int> group = group_along(stage.mesh, axis, device);
      if (group[0] != device) continue;
      for (int m = 0; m < static_cast<int>(identical.size()); ++m)
        if (identical[at(m)] == m) GroupVerifier(stage, communication, place, group, m).run();
    }
  }
}

// A communication between stages, in the order of a stage's calls.
struct Posted {
  int communication = 0;
  Call call{};
};

// A stage's posted sums over stages, by stream and devices.
using Sums = std::map<std::vector<int>, std::vector<Posted>>;

// [stage] by lane or devices.
struct Outgoing {
  std::map<int, std::vector<Posted>> transfers;
  Sums sums;
};
Outgoing outgoing(const LoweredStage& stage) {
  Outgoing result;
  walk(stage, [&](const Call& call, Position, const Post& post) {
    const Communication& communication = stage.communications[at(post.communication)];
    if (communication.devices.empty()) return;
    (is_sum_over_stages(communication) ? result.sums[communication.devices]
                                       : result.transfers[communication.lane])
        .push_back({post.communication, call});
  });
  return result;
}

// The devices of all stages in one group, whose members post the same in one order.
class SumVerifier {
 public:
  SumVerifier(const Program& program, const std::vector<Outgoing>& all)
      : program_(program), all_(all) {
    for (size_t s = 0; s < program.stages.size(); ++s)
      for (int device : program.stages[s].devices) stage_of_[device] = s;
  }

  void run() const {
    for (size_t s = 0; s < all_.size(); ++s)
      for (const auto& [devices, posted] : all_[s].sums) check(s, devices, posted);
  }

 private:
  const Communication& communication(size_t stage, const Posted& posted) const {
    return program_.stages[stage].communications[at(posted.communication)];
  }

  void check(size_t s, const std::vector<int>& devices, const std::vector<Posted>& posted) const {
    const std::string place = place_of(s, communication(s, posted[0]));
    std::set<size_t> members;
    std::set<int> seen;
    for (int device : devices) {
      const auto stage = stage_of_.find(device);
      expect_program(stage != stage_of_.end() && seen.insert(device).second,
                     place,
                     "found device {} in {}, expected devices of stages, each once",
                     device,
                     devices);
      members.insert(stage->second);
    }
    expect_program(members.contains(s), place, "found devices {}, expected its own, too", devices);
    for (size_t member : members) {
      const std::string name = stage_name(member);
      for (int device : program_.stages[member].devices)
        expect_program(seen.contains(device),
                       place,
                       "found devices {}, expected {} too, as all of {}",
                       devices,
                       device,
                       name);
      const auto other = all_[member].sums.find(devices);
      expect_program(other != all_[member].sums.end(),
                     place,
                     "found devices {}, but {} posts nothing with these",
                     devices,
                     name);
      if (member > s) compare(s, posted, member, other->second);
    }
    for (const Posted& each : posted) check_sizes(s, communication(s, each));
  }

  void compare(size_t s,
               const std::vector<Posted>& own,
               size_t other_stage,
               const std::vector<Posted>& other) const {
    for (size_t i = 0; i < std::max(own.size(), other.size()); ++i) {
      if (i >= own.size() || i >= other.size()) {
        const bool more = i < own.size();
        const size_t stage = more ? s : other_stage;
        const Posted& extra = more ? own[i] : other[i];
        refuse_program(fmt::format("{}: {}", stage_name(stage), to_string(extra.call)),
                       fmt::format("posts {}, which {} does not",
                                   communication(stage, extra).name,
                                   stage_name(more ? other_stage : s)));
      }
      const Communication &a = communication(s, own[i]), &b = communication(other_stage, other[i]);
      const auto says = [&](size_t stage, const Communication& c) {
        return fmt::format("{} {} {} of {}",
                           c.name,
                           to_string(c.kind),
                           c.reduce == Reduce::kMax ? "maximum" : "sum",
                           to_string(type_of(program_.stages[stage].graph, any_value(c)).dtype));
      };
      if (says(s, a) != says(other_stage, b))
        refuse_program(fmt::format("{}: {}", stage_name(s), to_string(own[i].call)),
                       fmt::format("posts {}, where {} posts {}",
                                   says(s, a),
                                   stage_name(other_stage),
                                   says(other_stage, b)));
      expect_program(a.sync == b.sync,
                     fmt::format("{}: {}", stage_name(s), a.name),
                     "found other cells than {} has",
                     stage_name(other_stage));
      const auto shape = [&](size_t stage, const Communication& c) {
        return type_of(program_.stages[stage].graph, any_value(c)).shape;
      };
      expect_program(
          a.kind == CommunicationKind::kGradientSync || shape(s, a) == shape(other_stage, b),
          fmt::format("{}: {}", stage_name(s), a.name),
          "found another shape than {} has",
          stage_name(other_stage));
    }
  }

  // Returns whether it is equal for all devices and micro-batches.
  static bool is_fixed(const Size& size) {
    return size.is_constant() || size.symbols == SymbolTable::batch().symbols;
  }

  // Checks fixed shapes: a number, one for each class, or the rows of the global batch.
  void check_sizes(size_t s, const Communication& sum) const {
    if (sum.kind == CommunicationKind::kGradientSync) return;  // verify_gradient_syncs()
    const LoweredStage& stage = program_.stages[s];
    expect_program(sum.kind == CommunicationKind::kAllReduce,
                   place_of(s, sum),
                   "found {} over stages, expected all_reduce or gradient sync",
                   to_string(sum.kind));
    for (const auto* values : {&sum.inputs, &sum.outputs})
      for (ValueId value : *values)
        expect_program(std::ranges::all_of(type_of(stage.graph, value).shape, is_fixed),
                       place_of(s, sum),
                       "value {}: expected a fixed shape",
                       value);
  }

  const Program& program_;
  const std::vector<Outgoing>& all_;
  std::map<int, size_t> stage_of_;  // [device]
};

// Checks that the sends of one stage on a lane are the receives of another.
class LaneVerifier {
 public:
  LaneVerifier(const Program& program,
               const std::vector<Outgoing>& outgoing,
               const std::vector<std::vector<int>>& identical)
      : program_(program), identical_(identical) {
    for (size_t s = 0; s < program.stages.size(); ++s) {
      for (const auto& [lane, posted] : outgoing[s].transfers) add(senders_, lane, s, posted);
      for (const auto& [lane, receipts] : receipts(program.stages[s])) {
        std::vector<Posted> received;
        for (const Receipt& receipt : receipts)
          received.push_back({receipt.communication, program.stages[s].calls[receipt.call]});
        add(receivers_, lane, s, received);
      }
    }
  }

  void run() {
    for (const auto& [lane, end] : senders_)
      expect_program(receivers_.contains(lane),
                     place(end.stage, end.all[0]),
                     "lane {}: found nobody who receives",
                     lane);
    for (const auto& [lane, end] : receivers_) {
      const auto sender = senders_.find(lane);
      expect_program(sender != senders_.end(),
                     place(end.stage, end.all[0]),
                     "lane {}: found nobody who sends",
                     lane);
      compare(lane, sender->second, end);
    }
  }

 private:
  struct End {
    size_t stage = 0;
    std::vector<Posted> all;
  };
  using Ends = std::map<int, End>;

  std::string place(size_t stage, const Posted& posted) const {
    return fmt::format(
        "{}: {}: {}", stage_name(stage), to_string(posted.call), communication(stage, posted).name);
  }
  const Communication& communication(size_t stage, const Posted& posted) const {
    return program_.stages[stage].communications[at(posted.communication)];
  }

  void add(Ends& ends, int lane, size_t stage, const std::vector<Posted>& all) const {
    expect_program(lane >= 0, place(stage, all[0]), "found lane {}", lane);
    const auto [place, is_new] = ends.try_emplace(lane, End{stage, all});
    expect_program(is_new,
                   this->place(stage, all[0]),
                   "lane {}: found also at {}, expected at one stage",
                   lane,
                   stage_name(place->second.stage));
  }

  void compare(int lane, const End& from, const End& to) {
    for (size_t i = 0; i < std::max(from.all.size(), to.all.size()); ++i) {
      if (i >= to.all.size())
        refuse_program(
            place(from.stage, from.all[i]),
            fmt::format("lane {}: found one more than {} receives", lane, stage_name(to.stage)));
      if (i >= from.all.size())
        refuse_program(
            place(to.stage, to.all[i]),
            fmt::format("lane {}: found one more than {} sends", lane, stage_name(from.stage)));
      compare(lane, from.stage, from.all[i], to.stage, to.all[i], from.all[0]);
    }
  }

  void compare(int lane,
               size_t sender,
               const Posted& sent,
               size_t receiver,
               const Posted& received,
               const Posted& first) {
    const Communication &from = communication(sender, sent),
                        &to = communication(receiver, received);
    const bool are_one = from.name == to.name && are_of_one_microbatch(sent.call, received.call);
    const int depth = communication(sender, first).depth;
    const bool is_deep = depth > 0 && from.depth == depth && to.depth == depth;
    const int a = identical_[sender][at(sent.call.microbatch)];
    const int b = identical_[receiver][at(received.call.microbatch)];
    if (are_one && is_deep &&
        !compared_.insert({sent.communication, a, receiver, received.communication, b}).second)
      return;
    const std::string where = place(receiver, received);
    expect_program(are_one,
                   where,
                   "lane {}: {} sends {} of {} in its place",
                   lane,
                   stage_name(sender),
                   from.name,
                   to_string(sent.call));
    expect_program(is_deep,
                   where,
                   "lane {}: found depths {} and {}, expected {}",
                   lane,
                   from.depth,
                   to.depth,
                   depth);
    compare(sender, from, a, receiver, to, b, where);
  }

  // Receives in the update are of the whole step.
  static bool are_of_one_microbatch(const Call& sent, const Call& received) {
    using enum FunctionKind;
    if (received.function != kUpdate)
      return sent.function != kUpdate && sent.microbatch == received.microbatch;
    return sent.function == kUpdate || sent.function == kBackwardLast;
  }

  void compare(size_t sender,
               const Communication& from,
               int sent_in,
               size_t receiver,
               const Communication& to,
               int received_in,
               const std::string& where) const {
    const LoweredStage &a = program_.stages[sender], &b = program_.stages[receiver];
    std::vector<int> devices = a.devices;
    devices.insert(devices.end(), b.devices.begin(), b.devices.end());
    for (const Communication* each : {&from, &to})
      expect_program(each->devices == devices && each->send.size() == devices.size() &&
                         each->receive.size() == devices.size(),
                     where,
                     "found devices {}, {} lengths to send and {} to receive, expected those of "
                     "devices {}",
                     each->devices,
                     each->send.size(),
                     each->receive.size(),
                     devices);
    const DType in = type_of(a.graph, from.inputs[0]).dtype,
                out = type_of(b.graph, to.outputs[0]).dtype;
    expect_program(
        in == out, where, "found {}, expected {} as it is sent", to_string(out), to_string(in));
    const auto table = [](const LoweredStage& stage, int microbatch, size_t device) -> const auto& {
      return stage.tables[at(microbatch)][device];
    };
    const size_t senders = a.devices.size();
    std::vector<std::vector<int64_t>> sent, received;
    for (size_t i = 0; i < a.devices.size(); ++i) {
      sent.push_back(evaluate_all(from.send, table(a, sent_in, i)));
      expect_sum(
          where, a.devices[i], "sent", sent[i], elements(a, from.inputs[0], table(a, sent_in, i)));
    }
    for (size_t j = 0; j < b.devices.size(); ++j) {
      received.push_back(evaluate_all(to.receive, table(b, received_in, j)));
      expect_sum(where,
                 b.devices[j],
                 "received",
                 received[j],
                 elements(b, to.outputs[0], table(b, received_in, j)));
    }
    for (size_t i = 0; i < a.devices.size(); ++i)
      for (size_t j = 0; j < b.devices.size(); ++j)
        expect_program(sent[i][senders + j] == received[j][i],
                       where,
                       "device {} sends {} elements to device {}, which expects {}",
                       a.devices[i],
                       sent[i][senders + j],
                       b.devices[j],
                       received[j][i]);
    for (size_t k = 0; k < devices.size(); ++k) {
      const bool sends = k < senders;
      for (size_t i = 0; i < a.devices.size(); ++i)
        expect_nothing(where,
                       a.devices[i],
                       evaluate(from.receive[k], table(a, sent_in, i)) + (sends ? sent[i][k] : 0));
      for (size_t j = 0; j < b.devices.size(); ++j)
        expect_nothing(
            where,
            b.devices[j],
            evaluate(to.send[k], table(b, received_in, j)) + (sends ? 0 : received[j][k]));
    }
  }

  static void expect_nothing(const std::string& where, int device, int64_t elements) {
    expect_program(elements == 0,
                   where,
                   "device {}: found {} elements the other way or to its own stage, expected none",
                   device,
                   elements);
  }

  static void expect_sum(const std::string& where,
                         int device,
                         const char* what,
                         const std::vector<int64_t>& lengths,
                         int64_t tensor) {
    expect_program(sum(lengths) == tensor,
                   where,
                   "device {}: found {} elements {}, expected the {} of its tensor",
                   device,
                   sum(lengths),
                   what,
                   tensor);
  }

  const Program& program_;
  const std::vector<std::vector<int>>& identical_;  // [stage][microbatch]
  Ends senders_, receivers_;                        // by lane
  // Sender's and receiver's communication and type of micro-batch: a lane has one sender.
  std::set<std::tuple<int, int, size_t, int, int>> compared_;
};

}  // namespace

void verify_messages(const Program& program) {
  std::vector<std::vector<int>> identical(program.stages.size());
  std::vector<Outgoing> all(program.stages.size());
  for_each_in_parallel(program.stages.size(), [&](size_t s) {
    identical[s] = first_identical(program.stages[s]);
    verify_mesh(program.stages[s], s, identical[s]);
    all[s] = outgoing(program.stages[s]);
  });
  SumVerifier(program, all).run();
  LaneVerifier(program, all, identical).run();
}

}  // namespace medley
