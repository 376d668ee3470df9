// Whether nobody waits for ever: verify_progress().

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <span>

#include "medley/base/at.h"
#include "medley/program/calls.h"
#include "medley/program/lanes.h"
#include "medley/program/verify_parts.h"

namespace medley {
namespace {

// Makes the calls of all stages, as far as they get. What happens inside of a stage is left out:
// its devices do the same in one order.
class Progress {
 public:
  explicit Progress(const Program& program) {
    for (const LoweredStage& stage : program.stages) {
      for (int device : stage.devices) stage_of_[device] = actors_.size();
      actors_.emplace_back(stage);
    }
    for (Actor& actor : actors_) receive_ahead(actor);
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Actor& actor : actors_)
        while (step(actor)) moved = true;
    }
    std::string stuck;
    for (size_t s = 0; s < actors_.size(); ++s)
      if (actors_[s].call < actors_[s].stage.calls.size())
        stuck += fmt::format("{}{}: {}: {}",
                             stuck.empty() ? "" : "; ",
                             stage_name(s),
                             to_string(actors_[s].stage.calls[actors_[s].call]),
                             what_next(actors_[s]));
    if (!stuck.empty()) refuse_program(stuck, "expected that one of them goes on");
  }

 private:
  struct Item {
    bool post;
    int communication;
    size_t step;  // of the function
  };
  struct Actor {
    explicit Actor(const LoweredStage& of) : stage(of), receiving(of) {
      for (const Function& function : of.functions) {
        std::vector<Item>& all = items[function.kind];
        for (size_t i = 0; i < function.steps.size(); ++i) {
          const auto* post = std::get_if<Post>(&function.steps[i]);
          const auto* wait = std::get_if<Wait>(&function.steps[i]);
          if (!post && !wait) continue;
          const int id = post ? post->communication : wait->communication;
          if (!of.communications[at(id)].devices.empty()) all.push_back({post != nullptr, id, i});
        }
      }
    }
    const LoweredStage& stage;
    std::map<FunctionKind, std::vector<Item>> items;  // between stages
    Receiving<int> receiving;                         // holds the number of the message in its lane
    size_t call = 0, item = 0;
    // Sums over stages take place in the order in which they are posted: what they are over.
    std::deque<int> sums;
    int sums_posted = 0, sums_done = 0;
    std::map<int, int> sum_numbers;  // by communication
  };
  // Stages that sum with each other.
  struct Group {
    std::vector<size_t> members;
    size_t waiting = 0;  // of them, those whose turn it is
  };
  struct Lane {
    int sent = 0, received = 0;  // posted by either end
  };

  // Of the call at hand.
  std::span<const Item> items(const Actor& actor) const {
    const Call& call = actor.stage.calls[actor.call];
    const std::vector<Item>& all = actor.items.at(call.function);
    const auto first = std::ranges::lower_bound(all, at(call.first), {}, &Item::step);
    const auto end =
        call.ends() ? all.end() : std::ranges::lower_bound(all, at(call.end), {}, &Item::step);
    return {first, end};
  }

  bool step(Actor& actor) {
    if (actor.call == actor.stage.calls.size()) return false;
    if (actor.item == items(actor).size()) {
      ++actor.call;
      actor.item = 0;
      return true;
    }
    const Item& item = items(actor)[actor.item];
    const Communication& communication = actor.stage.communications[at(item.communication)];
    const bool done = communication.lane < 0 ? sum(actor, communication, item)
                      : item.post            ? send(communication)
                                             : receive(actor, item, communication);
    if (done) ++actor.item;
    return done;
  }

  int group(const std::vector<int>& devices) {
    const auto [known, is_new] = group_of_.try_emplace(devices, static_cast<int>(groups_.size()));
    if (!is_new) return known->second;
    std::set<size_t> members;
    for (int device : devices) members.insert(stage_of_.at(device));
    groups_.push_back({{members.begin(), members.end()}});
    return known->second;
  }

  bool sum(Actor& actor, const Communication& communication, const Item& item) {
    if (!item.post) return actor.sums_done >= actor.sum_numbers[item.communication];
    actor.sum_numbers[item.communication] = ++actor.sums_posted;
    actor.sums.push_back(group(communication.devices));
    if (actor.sums.size() == 1) wait_for(actor.sums.front());
    return true;
  }

  // A sum is done once it is its turn in all stages that take part; then it is the turn of others.
  void wait_for(int group) {
    std::vector<int> complete;
    const auto wait = [&](int id) {
      if (++groups_[at(id)].waiting == groups_[at(id)].members.size()) complete.push_back(id);
    };
    wait(group);
    while (!complete.empty()) {
      Group& done = groups_[at(complete.back())];
      complete.pop_back();
      done.waiting = 0;
      for (const size_t member : done.members) {
        actors_[member].sums.pop_front();
        ++actors_[member].sums_done;
      }
      for (const size_t member : done.members)
        if (!actors_[member].sums.empty()) wait(actors_[member].sums.front());
    }
  }

  // Who sends waits for the oldest of too many.
  bool send(const Communication& communication) {
    Lane& lane = lanes_[communication.lane];
    if (lane.sent - communication.depth >= lane.received) return false;
    ++lane.sent;
    return true;
  }

  bool receive(Actor& actor, const Item& item, const Communication& communication) {
    const size_t step = item.step - at(actor.stage.calls[actor.call].first);
    const int* number = actor.receiving.posted(actor.call, step);
    if (!number || *number >= lanes_[communication.lane].sent) return false;
    actor.receiving.take(actor.call, step);
    receive_ahead(actor);
    return true;
  }

  void receive_ahead(Actor& actor) {
    actor.receiving.post_ahead([&](const Receipt& receipt) {
      return lanes_[actor.stage.communications[at(receipt.communication)].lane].received++;
    });
  }

  std::string what_next(const Actor& actor) const {
    const Item& item = items(actor)[actor.item];
    return fmt::format("{} {}",
                       item.post ? "has too many under way to send" : "waits for",
                       actor.stage.communications[at(item.communication)].name);
  }

  std::deque<Actor> actors_;
  std::map<int, size_t> stage_of_;            // [device]
  std::map<std::vector<int>, int> group_of_;  // by devices
  std::vector<Group> groups_;
  std::map<int, Lane> lanes_;
};

}  // namespace

void verify_progress(const Program& program) { Progress(program).run(); }

}  // namespace medley
