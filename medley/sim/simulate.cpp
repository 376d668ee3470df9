#include "medley/sim/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/memory/memory.h"
#include "medley/program/lanes.h"
#include "medley/sim/actor.h"
#include "medley/sim/identical_devices.h"
#include "medley/sim/network.h"
#include "medley/sim/prices.h"

namespace medley {
namespace {

constexpr Nanoseconds kForever{int64_t{1} << 62};
constexpr size_t kMemoryPoints = 1000;  // per device in a trace

// Time at which a device reaches a sum between pipelines.
struct Arrival {
  int pipeline = 0;
  Nanoseconds at;
};

// Every device runs as far as it can without waiting; then the network advances to the next instant
// at which one may resume.
class Simulator {
 public:
  Simulator(const Program& program, const CostModel& costs, const SimulateOptions& options);
  Simulation run();

 private:
  bool is_blocked(const Actor& actor) const;
  void run_all();
  void run_woken();
  void wake_up();
  void run_until_blocked(Actor& actor);
  bool go_on();
  int64_t speed(const Actor& actor) const;
  Nanoseconds end_of_segment(const Actor& actor) const;
  void add_actor(int stage, std::vector<int> devices);
  std::vector<SimulatedDevice> results();
  void follow_memory(const Actor& actor, int device, SimulatedDevice& result);
  // Return false if the device must wait.
  bool follow(Actor& actor, const Call& call, const Segment& segment);
  bool follow(Actor& actor, const Call& call, const Post& step);
  bool follow(Actor& actor, const Call& call, const Wait& step);
  Posted post(Actor& actor, int index, int microbatch);
  const Exchanges& exchanges(Actor& actor, int index, int microbatch);
  void count_traffic(const Actor& actor);
  void receive_ahead(Actor& actor);
  bool await_sent(Actor& actor);
  void find_pipelines();
  bool is_of_pipelines(const Actor& actor, int index) const {
    return of_pipelines_[at(actor.stage)][at(index)];
  }
  Nanoseconds own_arrival(const Actor& actor, const ExchangeKey& key) const;
  bool wait(Actor& actor, Posted& posted);
  SimulatedCall& current_call(Actor& actor) const;
  void follow_backward(Actor& actor, const Call& call, TimeSpan computes) const;
  void record_wait(const Actor& actor,
                   const Posted& posted,
                   Nanoseconds start,
                   const FlowEngine::Times& times);
  void record(const Actor& actor,
              Stream stream,
              std::string name,
              std::string category,
              Nanoseconds start,
              Nanoseconds end);
  const LoweredStage& stage(const Actor& actor) const { return program_.stages[at(actor.stage)]; }
  // Returns the first device, in the cluster.
  int device(const Actor& actor) const { return stage(actor).devices[at(actor.devices[0])]; }

  const Program& program_;
  const CostModel& costs_;
  SimulateOptions options_;
  std::unique_ptr<SimulatedNetwork> network_;
  std::vector<SegmentPrices> segments_;              // [stage]
  std::vector<CommunicationPrices> communications_;  // [stage]
  std::deque<Actor> actors_;
  bool is_slowed_ = false;  // some devices, by communication
  // Whether the network reports completed exchanges; [exchange] its poster.
  bool is_told_ = false;
  std::vector<int> completed_;
  std::vector<size_t> poster_;
  std::set<size_t> round_, next_round_;          // actors that may resume
  size_t running_ = 0;                           // index in this round; number of actors: none
  std::map<std::vector<int>, uint64_t> groups_;  // for communications between stages
  std::vector<std::vector<bool>> of_pipelines_;  // [stage][communication] between pipelines
  std::map<std::pair<uint64_t, int64_t>, std::vector<Arrival>> arrivals_;  // for those, by key
  std::vector<int64_t> bytes_by_link_;
  std::vector<int> ops_by_source_ = std::vector<int>(3);
  Simulation result_;
};

Simulator::Simulator(const Program& program, const CostModel& costs, const SimulateOptions& options)
    : program_(program),
      costs_(costs),
      options_(options),
      bytes_by_link_(costs.topology().links().size()) {
  const NetworkSize size = network_size(program);
  result_.exact = size.messages <= options.exact_messages;
  // A message is a step of its sender and one of its receiver.
  const int streams = num_streams(program);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const LoweredStage& stage = program.stages[s];
    segments_.emplace_back(stage, costs);
    communications_.emplace_back(stage, costs, result_.exact);
    for (const Communication& communication : stage.communications)
      if (!communication.devices.empty() && communication.lane < 0)
        groups_.try_emplace(communication.devices, groups_.size());
    // With messages, or in a trace, each device has its own.
    if (!result_.exact && !options.trace) {
      for (std::vector<int>& devices : identical_devices(stage, costs, communications_.back()))
        add_actor(static_cast<int>(s), std::move(devices));
    } else {
      for (size_t d = 0; d < stage.devices.size(); ++d)
        add_actor(static_cast<int>(s), {static_cast<int>(d)});
    }
  }
  network_ = result_.exact ? exact_network(costs.topology(),
                                           engine_room(costs.topology(),
                                                       size.posts,
                                                       2 * size.messages,
                                                       size.messages + size.between_stages,
                                                       streams))
                           : estimated_network(costs.topology(), streams, is_slowed_);
  find_pipelines();
}

void Simulator::add_actor(int stage, std::vector<int> devices) {
  const LoweredStage& on = program_.stages[at(stage)];
  Actor& actor = actors_.emplace_back(on);
  actor.number = actors_.size() - 1;
  actor.stage = stage;
  actor.devices = std::move(devices);
  const double slowdown = costs_.overlap_slowdown(costs_.cluster().kind(device(actor)));
  actor.speed = std::max<int64_t>(kParts, std::llround(slowdown * static_cast<double>(kParts)));
  is_slowed_ |= actor.speed > kParts;
  actor.result.stage = stage;
  actor.roles = roles_of(on, stage, actor.devices, communications_[at(stage)], groups_);
}

void Simulator::find_pipelines() {
  std::map<int, int> pipeline_of;  // [device in the cluster]
  for (const LoweredStage& stage : program_.stages)
    for (int device : stage.devices) pipeline_of[device] = stage.pipeline;
  for (const LoweredStage& stage : program_.stages) {
    std::vector<bool>& several = of_pipelines_.emplace_back();
    for (const Communication& communication : stage.communications)
      several.push_back(std::ranges::any_of(communication.devices, [&](int device) {
        return pipeline_of.at(device) != stage.pipeline;
      }));
  }
}

// Returns the last arrival of the device's own pipeline at its exchange.
Nanoseconds Simulator::own_arrival(const Actor& actor, const ExchangeKey& key) const {
  Nanoseconds last;
  for (const auto& [pipeline, at] : arrivals_.at({key.group, key.number}))
    if (pipeline == stage(actor).pipeline && at <= actor.clock) last = std::max(last, at);
  return last;
}

Simulation Simulator::run() {
  for (Actor& actor : actors_) receive_ahead(actor);
  run_all();
  while (go_on()) is_told_ ? run_woken() : run_all();
  for (Actor& actor : actors_) {
    MEDLEY_CHECK(actor.is_done);  // else the program deadlocks
    result_.step = std::max(result_.step, actor.clock);
  }
  for (const Actor& actor : actors_) count_traffic(actor);
  result_.devices = results();
  for (size_t link = 0; link < bytes_by_link_.size(); ++link)
    if (bytes_by_link_[link] > 0)
      result_.bytes_by_link[costs_.topology().links()[link].name] = bytes_by_link_[link];
  for (size_t source = 0; source < ops_by_source_.size(); ++source)
    if (ops_by_source_[source] > 0)
      result_.ops_by_source[static_cast<CostSource>(source)] = ops_by_source_[source];
  if (options_.trace) {
    for (const Device& device : costs_.cluster().devices)
      result_.trace.devices.push_back(device.name);
    for (const SimulatedDevice& device : result_.devices)
      if (!device.memory_over_time.empty())
        result_.trace.memory.push_back(
            {device.device, thinned(device.memory_over_time, kMemoryPoints)});
    sort(result_.trace);
  }
  return std::move(result_);
}

// Returns results of all devices, in program order.
std::vector<SimulatedDevice> Simulator::results() {
  std::vector<size_t> first;  // [stage] index of its first device
  size_t all = 0;
  for (const LoweredStage& stage : program_.stages) {
    first.push_back(all);
    all += stage.devices.size();
  }
  std::vector<SimulatedDevice> devices(all);
  for (Actor& actor : actors_) {
    SimulatedDevice& result = actor.result;
    result.waits = result.idles = result_.step - result.computes;
    for (const SimulatedCall& call : result.calls) result.idles -= call.waits;
    for (const int device : actor.devices) {
      SimulatedDevice& own = devices[first[at(actor.stage)] + at(device)];
      own = device == actor.devices.back() ? std::move(result) : result;
      own.device = stage(actor).devices[at(device)];
      if (options_.memory) follow_memory(actor, device, own);
    }
  }
  return devices;
}

// Runs while a device can resume.
void Simulator::run_all() {
  for (bool moved = true; moved;) {
    moved = false;
    for (Actor& actor : actors_) {
      if (is_blocked(actor)) continue;
      run_until_blocked(actor);
      moved = true;
    }
  }
  completed_.clear();
  is_told_ = network_->take_completed(completed_);
}

// Like run_all(), but resumes only actors whose exchange completed, in the same order; those after
// the running one in the same round.
void Simulator::run_woken() {
  for (wake_up(); !next_round_.empty();) {
    round_.swap(next_round_);
    while (!round_.empty()) {
      running_ = *round_.begin();
      round_.erase(round_.begin());
      if (is_blocked(actors_[running_])) continue;
      run_until_blocked(actors_[running_]);
      wake_up();
    }
    running_ = actors_.size();
  }
}

void Simulator::wake_up() {
  completed_.clear();
  network_->take_completed(completed_);
  const auto wake = [&](size_t actor) { (actor > running_ ? round_ : next_round_).insert(actor); };
  for (const int exchange : completed_)
    if (const size_t actor = poster_[at(exchange)]; actors_[actor].waits_for == exchange)
      wake(actor);
}

bool Simulator::is_blocked(const Actor& actor) const {
  if (actor.is_done) return true;
  if (actor.underway) return actor.underway->left > 0;
  return actor.waits_for >= 0 && !network_->completion(actor.waits_for);
}

int64_t Simulator::speed(const Actor& actor) const {
  return network_->communicates(device(actor)) ? kParts : actor.speed;
}

Nanoseconds Simulator::end_of_segment(const Actor& actor) const {
  const int64_t parts = speed(actor);
  return actor.underway->from +
         Nanoseconds{static_cast<int64_t>((actor.underway->left + parts - 1) / parts)};
}

// Advances to the end of a segment or the next network event, whichever is earlier: no speed
// changes in between. Returns false if no event remains.
bool Simulator::go_on() {
  running_ = actors_.size();
  if (!is_slowed_) return network_->advance(kForever);
  Actor* first = nullptr;  // with the earliest segment end
  for (Actor& actor : actors_)
    if (actor.underway && (!first || end_of_segment(actor) < end_of_segment(*first)))
      first = &actor;
  if (!first) return network_->advance(kForever);
  const auto next = network_->next_event();
  if (!next || end_of_segment(*first) <= *next) {
    first->underway = {0, end_of_segment(*first)};
    next_round_.insert(first->number);
    return true;
  }
  for (Actor& actor : actors_) {
    if (!actor.underway || actor.underway->from >= *next) continue;
    actor.underway->left -= __int128{speed(actor)} * (*next - actor.underway->from).value;
    actor.underway->from = *next;
    if (actor.underway->left <= 0) next_round_.insert(actor.number);
  }
  network_->advance(*next);
  return true;
}

void Simulator::run_until_blocked(Actor& actor) {
  const auto make = [&](const Call& call, Position, const StepKind auto& step) {
    const Nanoseconds begins = actor.clock;
    if (!follow(actor, call, step)) return false;
    if (options_.memory) {
      actor.ran.resize(actor.at.call + 1);
      const bool computes = std::same_as<const Segment&, decltype(step)>;
      actor.ran.back().push_back({computes ? begins : actor.clock, actor.clock});
    }
    return true;
  };
  const auto end = [&](const Call&, Position, CallEnd) { current_call(actor).ends = actor.clock; };
  actor.is_done = walk(stage(actor), actor.at, Visitor{make, end}) && await_sent(actor);
}

// Returns false if the segment depends on communication in progress.
bool Simulator::follow(Actor& actor, const Call& call, const Segment& segment) {
  const SegmentPrice& price =
      segments_[at(actor.stage)].price(segment, call.microbatch, actor.devices[0]);
  const Nanoseconds start = actor.clock;
  if (actor.speed == kParts || price.time == Nanoseconds{}) {
    actor.clock += price.time;
  } else if (!actor.underway) {
    actor.underway = {__int128{price.time.value} * actor.speed, start};
    return false;
  } else {
    actor.clock = actor.underway->from;
    actor.underway.reset();
  }
  actor.result.computes += actor.clock - start;
  current_call(actor).computes += actor.clock - start;
  for (size_t source = 0; source < ops_by_source_.size(); ++source)
    ops_by_source_[source] += static_cast<int>(actor.devices.size()) * price.ops_by_source[source];
  result_.events += std::ssize(actor.devices);
  if (options_.syncs) follow_backward(actor, call, {start, actor.clock});
  if (options_.trace)
    record(
        actor, Stream::kCompute, to_string(call), function_name(call.function), start, actor.clock);
  return true;
}

// Merges spans that touch.
void Simulator::follow_backward(Actor& actor, const Call& call, TimeSpan computes) const {
  if (!is_backward(call.function) || computes.begin == computes.end) return;
  std::vector<TimeSpan>& spans = actor.result.backward;
  if (!spans.empty() && spans.back().end == computes.begin)
    spans.back().end = computes.end;
  else
    spans.push_back(computes);
}

// Returns the exchanges of one more post.
const Exchanges& Simulator::exchanges(Actor& actor, int index, int microbatch) {
  CommunicationPrices& prices = communications_[at(actor.stage)];
  const int first = prices.first_identical(microbatch);
  std::vector<Role::Known>& known = actor.roles[at(index)].known;
  auto place = std::ranges::find(known, first, &Role::Known::microbatch);
  if (place == known.end())
    place = known.insert(place, {first, &prices.exchanges(index, first, actor.devices[0])});
  ++place->posted;
  return *place->exchanges;
}

// Counts traffic of groups whose first member is the actor's.
void Simulator::count_traffic(const Actor& actor) {
  int index = 0;
  for (const Role& role : actor.roles) {
    for (const auto& [microbatch, exchanges, posted] : role.known)
      for (const int lead : role.leads) {
        const Exchanges& own = communications_[at(actor.stage)].exchanges(index, microbatch, lead);
        for (const auto& [link, bytes] : own.bytes_by_link)
          bytes_by_link_[at(link)] += posted * bytes;
        result_.events += posted * own.num_messages;
      }
    ++index;
  }
}

Posted Simulator::post(Actor& actor, int index, int microbatch) {
  const Communication& communication = stage(actor).communications[at(index)];
  const Exchanges& exchanges = this->exchanges(actor, index, microbatch);
  Posted posted{-1, index, microbatch, {}};
  if (exchanges.devices.size() == 1 && traits_of(communication.kind).is_whole()) return posted;
  const Role& role = actor.roles[at(index)];
  posted.key = {role.group, actor.next_key[role.group]++};
  if (is_of_pipelines(actor, index))
    arrivals_[{posted.key.group, posted.key.number}].push_back(
        {stage(actor).pipeline, actor.clock});
  posted.exchange = network_->post(
      {.device = device(actor),
       .member = role.member,
       .members = role.members,
       .key = posted.key,
       .at = actor.clock,
       .exchanges = &exchanges,
       .turn = {stream_of(communication), communication.kind == CommunicationKind::kTransfer}});
  poster_.resize(std::max(poster_.size(), at(posted.exchange) + 1));
  poster_[at(posted.exchange)] = actor.number;
  return posted;
}

// Returns false if too many transfers are in transit.
bool Simulator::follow(Actor& actor, const Call& call, const Post& step) {
  const int index = step.communication;
  const Communication& communication = stage(actor).communications[at(index)];
  if (communication.lane < 0) {
    actor.posted[at(index)].push_back(post(actor, index, call.microbatch));
    return true;
  }
  std::deque<Posted>& sending = actor.sending[communication.lane];
  for (; static_cast<int>(sending.size()) >= communication.depth; sending.pop_front())
    if (!wait(actor, sending.front())) return false;
  sending.push_back(post(actor, index, call.microbatch));
  return true;
}

// Returns the call that the actor has reached.
SimulatedCall& Simulator::current_call(Actor& actor) const {
  std::vector<SimulatedCall>& calls = actor.result.calls;
  if (calls.size() == actor.at.call)
    calls.push_back({stage(actor).calls[actor.at.call], {}, {}, {}});
  return calls.back();
}

bool Simulator::follow(Actor& actor, const Call& call, const Wait& step) {
  const int index = step.communication;
  std::deque<Posted>& all = actor.posted[at(index)];
  const Communication& communication = stage(actor).communications[at(index)];
  const bool receives = only_receives(communication);
  const Nanoseconds start = actor.clock;
  if (receives && all.empty()) all.push_back(actor.receiving.take(actor.at.call, actor.at.step));
  Posted& posted = all.front();
  posted.microbatch = call.microbatch;
  const bool under_way = posted.exchange >= 0;
  const ExchangeKey key = posted.key;
  if (!wait(actor, posted)) return false;
  all.pop_front();
  if (receives) receive_ahead(actor);
  if (communication.devices.empty()) current_call(actor).waits += actor.clock - start;
  if (under_way && is_of_pipelines(actor, index))
    actor.result.others += actor.clock - std::max(start, own_arrival(actor, key));
  return true;
}

void Simulator::receive_ahead(Actor& actor) {
  actor.receiving.post_ahead([&](const Receipt& receipt) {
    return post(actor, receipt.communication, stage(actor).calls[receipt.call].microbatch);
  });
}

// Waits for sent messages at the end of the step.
bool Simulator::await_sent(Actor& actor) {
  for (auto& [lane, sending] : actor.sending)
    for (; !sending.empty(); sending.pop_front())
      if (!wait(actor, sending.front())) return false;
  return true;
}

bool Simulator::wait(Actor& actor, Posted& posted) {
  if (posted.exchange < 0) return true;
  const auto times = network_->completion(posted.exchange);
  actor.waits_for = times ? -1 : posted.exchange;
  if (!times) return false;
  network_->release(posted.exchange);
  const Nanoseconds start = actor.clock;
  actor.clock = std::max(actor.clock, times->complete);
  actor.result.communicates += times->end - times->start;
  if (options_.trace) record_wait(actor, posted, start, *times);
  if (options_.syncs && stage(actor).communications[at(posted.communication)].sync)
    actor.result.syncs.push_back({posted.communication, {times->start, times->end}});
  posted.exchange = -1;
  return true;
}

void Simulator::record_wait(const Actor& actor,
                            const Posted& posted,
                            Nanoseconds start,
                            const FlowEngine::Times& times) {
  const Communication& communication = stage(actor).communications[at(posted.communication)];
  record(actor, Stream::kCompute, communication.name, std::string(kWaiting), start, actor.clock);
  record(actor,
         Stream::kCommunication,
         communication.name,
         to_string(communication.kind),
         times.start,
         times.end);
  int64_t bytes = 0;
  for (ValueId value : communication.inputs.empty() ? communication.outputs : communication.inputs)
    bytes += num_bytes(type_of(stage(actor).graph, value),
                       stage(actor).tables[at(posted.microbatch)][at(actor.devices[0])]);
  result_.trace.events.back().args = {{"bytes", std::to_string(bytes)}};
}

// Returns a part of a segment that took longer than it does alone.
Nanoseconds stretched(Nanoseconds part, Nanoseconds whole, Nanoseconds took) {
  if (whole == took) return part;
  return {static_cast<int64_t>(__int128{part.value} * took.value / whole.value)};
}

// Follows the memory of one device.
void Simulator::follow_memory(const Actor& actor, int device, SimulatedDevice& result) {
  const LoweredStage& on = stage(actor);
  std::vector<MemoryPoint> points;
  const MemoryUse use = memory_use(on, device, points);
  result.persistent_bytes = use.persistent;
  result.peak_bytes = use.peak;
  result.peak_at = use.peak_at;
  auto& alive = result.memory_over_time;
  const auto add = [&](Nanoseconds from, int64_t bytes) {
    if (alive.empty() || alive.back().second != bytes) alive.emplace_back(from, bytes);
  };
  for (const MemoryPoint& point : points) {
    const Call& call = on.calls[point.call];
    const Step& step = steps_of(on, call)[point.step];
    const auto [begins, ends] = actor.ran[point.call][point.step];
    Nanoseconds from = begins, until = begins;
    if (const auto* segment = std::get_if<Segment>(&step)) {
      const SegmentPrice& price =
          segments_[at(actor.stage)].price(*segment, call.microbatch, actor.devices[0]);
      if (point.op > 0) from += stretched(price.ends[point.op - 1], price.time, ends - begins);
      until += stretched(price.ends[point.op], price.time, ends - begins);
    }
    add(from, point.during);
    add(until, point.after);
  }
}

void Simulator::record(const Actor& actor,
                       Stream stream,
                       std::string name,
                       std::string category,
                       Nanoseconds start,
                       Nanoseconds end) {
  result_.trace.events.push_back(
      {device(actor), stream, std::move(name), std::move(category), start, end - start, {}});
}

}  // namespace

double Simulation::bubble() const {
  Nanoseconds idle;
  for (const SimulatedDevice& device : devices) idle += device.idles;
  if (step.value == 0) return 0;
  return idle / (step * static_cast<int64_t>(devices.size()));
}

Simulation simulate(const Program& program,
                    const CostModel& costs,
                    const SimulateOptions& options) {
  return Simulator(program, costs, options).run();
}

}  // namespace medley
