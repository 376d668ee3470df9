#pragma once

// The virtual clock of an emulated cluster. The devices, threads of one process or processes of one
// machine, book computing and sending. Each has a compute clock, which it moves itself, and
// communication streams, which move by events (network/flow_engine.h).
//
//   device 0 compute   |##########|......wait......|####|
//            comm            ^post |===== exchange =====|
//   device 1 compute   |################|##############|
//
// Events are committed only up to the earliest compute clock of all devices that do not wait,
// before which no device can post. Times thus depend on the program alone, never on the host, its
// load or the order of threads.
//
// A device books an op before it runs it, so ops of several devices run in parallel on the host.
// Knows nothing of tensors, executors or transports.

#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "medley/emulation/shared_memory.h"
#include "medley/network/flow_engine.h"

namespace medley {

struct LedgerOptions {
  // The real time without progress after which a waiting device names the blocking one.
  std::chrono::milliseconds stall{120'000};
  // Real seconds per emulated second, as a lower limit for live demos; 0: as fast as the host can.
  // Changes no emulated time.
  double pace = 0;
};

class Ledger {
 public:
  // Creates a ledger for this process's threads and forked processes. `topology` outlives it.
  static std::unique_ptr<Ledger> create(const Topology& topology, LedgerOptions options = {});
  // Creates a ledger for processes that open the file, which it removes at its end. Throws
  // Error(kEnvironment) naming the path.
  static std::unique_ptr<Ledger> create(const Topology& topology,
                                        const std::filesystem::path& path,
                                        LedgerOptions options = {});
  // Throws Error(kCaller) if the file is of another cluster.
  static std::unique_ptr<Ledger> open(const Topology& topology,
                                      const std::filesystem::path& path,
                                      LedgerOptions options = {});

  // Adds a device from its clock's zero on. Emulated time starts after all have joined. The process
  // of the caller is watched.
  void join(int device);
  // Ends a device's posts. Others may still receive earlier ones.
  void leave(int device);

  // Moves the compute clock, before the op runs. Requires: duration >= 0.
  void compute(int device, Nanoseconds duration);
  // Posts at the compute clock. `name` is for errors.
  int post(int device,
           ExchangeKey key,
           int num_members,
           std::span<const RoundStep> steps,
           const std::string& name,
           Turn turn = {});
  // From here to finish_wait() the device blocks no other device.
  void begin_wait(int device, int exchange);
  // Blocks until the exchange is complete; the compute clock is then at least that time. Releases
  // the exchange. Throws Error(kEnvironment) if aborted, if a device has died and no other can
  // proceed, or after too long without progress (names the device with the clock).
  FlowEngine::Times finish_wait(int device, int exchange);
  void release(int exchange);

  // Ends every wait of this process with an error, now and from now on. Keeps the first cause.
  void abort(const std::string& cause);
  // Returns "12.3 ms: fast/0/0 computes, fast/0/1 waits for all_reduce w, slow/0/0 has not joined".
  std::string describe();

  Nanoseconds now(int device);  // its compute clock
  // Sleeps until the paced real time reaches the device's compute clock.
  void keep_pace(int device);

  const Topology& topology() const { return topology_; }

 private:
  struct Header;
  struct Actor;
  class Lock;

  Ledger(const Topology& topology, SharedMemory memory, LedgerOptions options);
  static size_t actors_offset();
  static size_t engine_offset(int num_devices);
  static size_t bytes_needed(const Topology& topology);
  static void format(const Topology& topology, std::span<std::byte> memory);

  Header& header() const;
  Actor& actor(int device) const;
  const std::string& name(int device) const;
  void advance();
  void settle_waits();
  bool nobody_can_move() const;
  void wake_all();
  void remove_dead();
  std::string describe_locked() const;
  std::string aborted() const;
  void watch(int device, uint64_t& seen_moves, std::chrono::steady_clock::time_point& since);

  const Topology& topology_;
  SharedMemory memory_;
  LedgerOptions options_;
  FlowEngine engine_;
  mutable std::mutex abort_mutex_;
  std::string abort_cause_;
};

}  // namespace medley
