// verify_progress(): checks for deadlocks.

#include <fmt/format.h>

#include <deque>
#include <map>
#include <set>

#include "medley/base/at.h"
#include "medley/program/lanes.h"
#include "medley/program/verify_parts.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

// Runs the calls of all stages as far as possible. Omits the inside of a stage, whose devices do
// the same in one order.
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
      for (Actor& actor : actors_) {
        const Position before = actor.at;
        go_on(actor);
        moved |= actor.at != before;
      }
    }
    std::string stuck;
    for (size_t s = 0; s < actors_.size(); ++s) {
      const Actor& actor = actors_[s];
      if (actor.at.call == actor.stage.calls.size()) continue;
      const Call& call = actor.stage.calls[actor.at.call];
      const Item next = items_of(steps_of(actor.stage, call).subspan(actor.at.step, 1))[0];
      stuck += fmt::format("{}{}: {}: {} {}",
                           stuck.empty() ? "" : "; ",
                           stage_name(s),
                           to_string(call),
                           actor.why,
                           communication(actor, next.index).name);
    }
    if (!stuck.empty()) refuse_program(stuck, "expected that one of them goes on");
  }

 private:
  struct Actor {
    explicit Actor(const LoweredStage& of) : stage(of), receiving(of) {}
    const LoweredStage& stage;
    Receiving<int> receiving;  // the message's index in its lane
    Position at;
    const char* why = "";  // the reason of its wait
    // Sums over stages run in posting order: their groups.
    std::deque<int> sums;
    int sums_posted = 0, sums_done = 0;
    std::map<int, int> sum_numbers;  // by communication
  };
  // Stages that sum with each other.
  struct Group {
    std::vector<size_t> members;
    size_t waiting = 0;  // stages at this sum
  };
  struct Lane {
    int sent = 0, received = 0;  // posted by either end
  };

  // Runs its steps up to one that has to wait.
  void go_on(Actor& actor) {
    walk(actor.stage,
         actor.at,
         Visitor{[&](const Call&, Position, const Post& post) {
                   actor.why = "has too many under way to send";
                   const Communication& posted = communication(actor, post.communication);
                   if (posted.lane >= 0) return send(posted);
                   if (!posted.devices.empty()) sum(actor, post.communication);
                   return true;
                 },
                 [&](const Call&, Position from, const Wait& wait) {
                   actor.why = "waits for";
                   const Communication& awaited = communication(actor, wait.communication);
                   if (awaited.lane >= 0) return receive(actor, from, awaited);
                   return awaited.devices.empty() ||
                          actor.sums_done >= actor.sum_numbers[wait.communication];
                 }});
  }

  static const Communication& communication(const Actor& actor, int id) {
    return actor.stage.communications[at(id)];
  }

  int group(const std::vector<int>& devices) {
    const auto [known, is_new] = group_of_.try_emplace(devices, static_cast<int>(groups_.size()));
    if (!is_new) return known->second;
    std::set<size_t> members;
    for (int device : devices) members.insert(stage_of_.at(device));
    groups_.push_back({{members.begin(), members.end()}});
    return known->second;
  }

  void sum(Actor& actor, int id) {
    actor.sum_numbers[id] = ++actor.sums_posted;
    actor.sums.push_back(group(communication(actor, id).devices));
    if (actor.sums.size() == 1) wait_for(actor.sums.front());
  }

  // Waits for a sum. It completes when it is next in all its stages, which unblocks the next ones.
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

  // Sends, or waits for the oldest of too many transfers.
  bool send(const Communication& communication) {
    Lane& lane = lanes_[communication.lane];
    if (lane.sent - communication.depth >= lane.received) return false;
    ++lane.sent;
    return true;
  }

  bool receive(Actor& actor, Position from, const Communication& communication) {
    const int* number = actor.receiving.posted(from.call, from.step);
    if (!number || *number >= lanes_[communication.lane].sent) return false;
    actor.receiving.take(from.call, from.step);
    receive_ahead(actor);
    return true;
  }

  void receive_ahead(Actor& actor) {
    actor.receiving.post_ahead([&](const Receipt& receipt) {
      return lanes_[actor.stage.communications[at(receipt.communication)].lane].received++;
    });
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
