#include "medley/emulation/ledger.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

constexpr Nanoseconds kForever{std::numeric_limits<int64_t>::max()};
constexpr uint64_t kMagic = 0x6d65646c65793031;  // "medley01"
constexpr std::chrono::milliseconds kLook{200};  // interval of a waiting device's liveness checks

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t real_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

struct Ledger::Header {
  uint64_t magic;
  char cluster[65];  // cluster hash
  SharedMutex mutex;
  uint64_t moves;  // increases whenever any device acts
  int64_t origin;  // real time when the last device joined
};

struct Ledger::Actor {
  enum class State : int32_t { kAbsent, kHere, kLeft, kDied };
  State state;
  int32_t waits_for;  // exchange, or -1
  Nanoseconds clock;
  ProcessId process;
  std::atomic<uint32_t> wakes;
  char exchange[64];  // last posted one
};

// Locks the mutex.
class Ledger::Lock {
 public:
  explicit Lock(const Ledger& ledger) : mutex_(ledger.header().mutex) {
    if (mutex_.lock()) return;
    mutex_.unlock();
    throw Error(Blame::kEnvironment,
                "emulation: a device has died while it changed the virtual clock");
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { mutex_.unlock(); }

 private:
  SharedMutex& mutex_;
};

size_t Ledger::actors_offset() { return aligned(sizeof(Header)); }
size_t Ledger::engine_offset(int num_devices) {
  return actors_offset() + aligned(sizeof(Actor) * at(num_devices));
}
size_t Ledger::bytes_needed(const Topology& topology) {
  return engine_offset(topology.num_devices()) + FlowEngine::bytes_needed(usual_room(topology));
}

void Ledger::format(const Topology& topology, std::span<std::byte> memory) {
  auto* header = new (memory.data()) Header{};
  header->mutex.format();
  const std::string cluster = hash(topology.cluster());
  std::memcpy(
      header->cluster, cluster.c_str(), std::min(cluster.size(), sizeof(header->cluster) - 1));
  auto* actors = reinterpret_cast<Actor*>(memory.data() + actors_offset());
  for (int i = 0; i < topology.num_devices(); ++i)
    new (actors + i) Actor{Actor::State::kAbsent, -1, {}, {}, 0, {}};
  FlowEngine::format(memory.subspan(engine_offset(topology.num_devices())), usual_room(topology));
  header->magic = kMagic;
}

Ledger::Ledger(const Topology& topology, SharedMemory memory, LedgerOptions options)
    : topology_(topology),
      memory_(std::move(memory)),
      options_(options),
      engine_(memory_.bytes().subspan(engine_offset(topology.num_devices())), topology) {}

std::unique_ptr<Ledger> Ledger::create(const Topology& topology, LedgerOptions options) {
  SharedMemory memory = SharedMemory::anonymous(bytes_needed(topology));
  format(topology, memory.bytes());
  return std::unique_ptr<Ledger>(new Ledger(topology, std::move(memory), options));
}

std::unique_ptr<Ledger> Ledger::create(const Topology& topology,
                                       const std::filesystem::path& path,
                                       LedgerOptions options) {
  SharedMemory memory = SharedMemory::create(path, bytes_needed(topology));
  format(topology, memory.bytes());
  return std::unique_ptr<Ledger>(new Ledger(topology, std::move(memory), options));
}

std::unique_ptr<Ledger> Ledger::open(const Topology& topology,
                                     const std::filesystem::path& path,
                                     LedgerOptions options) {
  SharedMemory memory = SharedMemory::open(path);
  const auto* header = reinterpret_cast<const Header*>(memory.bytes().data());
  if (memory.bytes().size() != bytes_needed(topology) || header->magic != kMagic ||
      hash(topology.cluster()) != header->cluster)
    throw Error(
        Blame::kCaller,
        fmt::format("emulation: the virtual clock is of another cluster: {}", path.string()));
  return std::unique_ptr<Ledger>(new Ledger(topology, std::move(memory), options));
}

Ledger::Header& Ledger::header() const {
  return *reinterpret_cast<Header*>(memory_.bytes().data());
}
Ledger::Actor& Ledger::actor(int device) const {
  MEDLEY_CHECK(device >= 0 && device < topology_.num_devices());
  return reinterpret_cast<Actor*>(memory_.bytes().data() + actors_offset())[device];
}
const std::string& Ledger::name(int device) const {
  return topology_.cluster().devices[at(device)].name;
}

void Ledger::join(int device) {
  const Lock lock(*this);
  Actor& me = actor(device);
  if (me.state != Actor::State::kAbsent)
    throw Error(Blame::kUs, fmt::format("emulation: has joined before: {}", name(device)));
  me.state = Actor::State::kHere;
  me.process = this_process();
  ++header().moves;
  header().origin = real_now();
  advance();
}

void Ledger::leave(int device) {
  const Lock lock(*this);
  Actor& me = actor(device);
  if (me.state != Actor::State::kHere) return;
  me.state = Actor::State::kLeft;
  me.waits_for = -1;
  ++header().moves;
  advance();
}

void Ledger::compute(int device, Nanoseconds duration) {
  MEDLEY_CHECK(duration >= Nanoseconds{});
  const Lock lock(*this);
  Actor& me = actor(device);
  MEDLEY_CHECK(me.state == Actor::State::kHere && me.waits_for < 0);
  me.clock += duration;
  ++header().moves;
  advance();
}

int Ledger::post(int device,
                 ExchangeKey key,
                 int num_members,
                 std::span<const RoundStep> steps,
                 const std::string& what,
                 Turn turn) {
  const Lock lock(*this);
  Actor& me = actor(device);
  MEDLEY_CHECK(me.state == Actor::State::kHere && me.waits_for < 0);
  const int exchange = engine_.post(device, key, num_members, me.clock, steps, turn);
  std::snprintf(me.exchange, sizeof(me.exchange), "%s", what.c_str());
  ++header().moves;
  advance();
  return exchange;
}

void Ledger::begin_wait(int device, int exchange) {
  const Lock lock(*this);
  Actor& me = actor(device);
  MEDLEY_CHECK(me.state == Actor::State::kHere && me.waits_for < 0);
  me.waits_for = exchange;
  ++header().moves;
  advance();
}

FlowEngine::Times Ledger::finish_wait(int device, int exchange) {
  Actor& me = actor(device);
  uint64_t seen_moves = 0;
  auto since = std::chrono::steady_clock::now();
  while (true) {
    uint32_t wakes = 0;
    {
      const Lock lock(*this);
      if (const std::string cause = aborted(); !cause.empty())
        throw Error(Blame::kEnvironment, "aborted: " + cause);
      if (me.waits_for < 0) {
        const FlowEngine::Times times = *engine_.completion(exchange);
        engine_.release(exchange);
        return times;
      }
      if (nobody_can_move())
        throw Error(Blame::kEnvironment, "emulation: nobody can go on: " + describe_locked());
      wakes = me.wakes;
    }
    const auto before = std::chrono::steady_clock::now();
    sleep_on(me.wakes, wakes, std::min(kLook, options_.stall));
    if (std::chrono::steady_clock::now() - before >= std::min(kLook, options_.stall))
      watch(device, seen_moves, since);
  }
}

void Ledger::release(int exchange) {
  const Lock lock(*this);
  engine_.release(exchange);
}

// Gives every device with a complete exchange its new clock before any other event, because it may
// post from there on.
void Ledger::settle_waits() {
  for (int device = 0; device < topology_.num_devices(); ++device) {
    Actor& each = actor(device);
    if (each.waits_for < 0 || each.state != Actor::State::kHere) continue;
    const auto times = engine_.completion(each.waits_for);
    if (!times) continue;
    each.clock = std::max(each.clock, times->complete);
    each.waits_for = -1;
    ++each.wakes;
    wake(each.wakes);
  }
}

void Ledger::advance() {
  while (true) {
    settle_waits();
    Nanoseconds safe = kForever;
    for (int device = 0; device < topology_.num_devices(); ++device) {
      const Actor& each = actor(device);
      const bool may_post = each.state == Actor::State::kAbsent ||
                            (each.state == Actor::State::kHere && each.waits_for < 0);
      if (may_post) safe = std::min(safe, each.clock);
    }
    if (!engine_.advance(safe)) break;
  }
  // Wakes the waiting devices to report the deadlock.
  if (nobody_can_move()) wake_all();
}

void Ledger::wake_all() {
  for (int device = 0; device < topology_.num_devices(); ++device) {
    ++actor(device).wakes;
    wake(actor(device).wakes);
  }
}

// Returns whether all devices wait or have left, with no exchange in flight.
bool Ledger::nobody_can_move() const {
  for (int device = 0; device < topology_.num_devices(); ++device) {
    const Actor& each = actor(device);
    if (each.state == Actor::State::kAbsent ||
        (each.state == Actor::State::kHere && each.waits_for < 0))
      return false;
  }
  return !engine_.next_event();
}

void Ledger::remove_dead() {
  const ProcessId self = this_process();
  for (int device = 0; device < topology_.num_devices(); ++device) {
    Actor& each = actor(device);
    if (each.state != Actor::State::kHere || each.process.pid == self.pid || is_alive(each.process))
      continue;
    each.state = Actor::State::kDied;
    each.waits_for = -1;
    engine_.remove(device);
    ++header().moves;
  }
  advance();
}

void Ledger::watch(int device, uint64_t& seen_moves, std::chrono::steady_clock::time_point& since) {
  const Lock lock(*this);
  remove_dead();
  const auto now = std::chrono::steady_clock::now();
  if (header().moves != seen_moves) {
    seen_moves = header().moves;
    since = now;
  } else if (now - since >= options_.stall && actor(device).waits_for >= 0) {
    throw Error(
        Blame::kEnvironment,
        fmt::format(
            "emulation: nobody has moved for {} s (does anybody wait outside the emulation?): {}",
            std::chrono::duration<double>(now - since).count(),
            describe_locked()));
  }
}

std::string Ledger::describe() {
  const Lock lock(*this);
  return describe_locked();
}

std::string Ledger::describe_locked() const {
  std::string text = to_string(engine_.now()) + ":";
  for (int device = 0; device < topology_.num_devices(); ++device) {
    const Actor& each = actor(device);
    text += fmt::format("{} {} ", device == 0 ? "" : ",", name(device));
    if (each.state == Actor::State::kAbsent) {
      text += "has not joined";
    } else if (each.state == Actor::State::kLeft) {
      text += "has left";
    } else if (each.state == Actor::State::kDied) {
      text += "has died";
    } else if (each.waits_for >= 0) {
      text += fmt::format("waits (last posted: {})", each.exchange);
    } else {
      text += fmt::format("holds the clock at {} (last posted: {})",
                          to_string(each.clock),
                          each.exchange[0] ? each.exchange : "nothing");
    }
  }
  return text;
}

void Ledger::abort(const std::string& cause) {
  {
    const std::scoped_lock lock(abort_mutex_);
    if (abort_cause_.empty()) abort_cause_ = cause.empty() ? "no cause given" : cause;
  }
  wake_all();
}

std::string Ledger::aborted() const {
  const std::scoped_lock lock(abort_mutex_);
  return abort_cause_;
}

Nanoseconds Ledger::now(int device) {
  const Lock lock(*this);
  return actor(device).clock;
}

// Deadlines follow from the emulated clock, not from the last sleep, so that errors do not add up.
void Ledger::keep_pace(int device) {
  if (options_.pace <= 0) return;
  int64_t deadline = 0;
  {
    const Lock lock(*this);
    deadline = header().origin +
               static_cast<int64_t>(static_cast<double>(actor(device).clock.value) * options_.pace);
  }
  prctl(PR_SET_TIMERSLACK, 1UL);
  const timespec time{deadline / 1'000'000'000, deadline % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
}

}  // namespace medley
