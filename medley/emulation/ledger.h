#pragma once

// The virtual clock of an emulated cluster: all devices, threads of one process or processes of one
// machine, book what they compute and send. Each device has a compute clock, which moves when it
// says so, and communication streams, which move by events (network/flow_engine.h).
//
//   device 0 compute   |##########|......wait......|####|
//            comm            ^post |===== exchange =====|        events are committed only up to
//            the earliest compute clock of all devices that
//   device 1 compute   |################|##############|         do not wait: before it nobody can
//   post any more. So times depend on the program
//                                                                alone, never on the host, its load
//                                                                or the order in which threads run.
//
// Because a device says how long an op takes before it runs it, ops of several devices run in
// parallel on the host. Knows nothing of tensors, executors or transports.

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
  // How long in real time a waiting device watches nobody move before it names who should.
  std::chrono::milliseconds stall{120'000};
  // Real seconds per emulated second that devices are held back to, for live demos; 0: as fast as
  // the host can. Changes no emulated time.
  double pace = 0;
};

class Ledger {
 public:
  // For threads of this process and the processes that it forks. `topology` outlives it.
  static std::unique_ptr<Ledger> create(const Topology& topology, LedgerOptions options = {});
  // For processes that open the file; it goes away with this ledger. Throws Error(kEnvironment)
  // naming the path.
  static std::unique_ptr<Ledger> create(const Topology& topology,
                                        const std::filesystem::path& path,
                                        LedgerOptions options = {});
  // Throws Error(kCaller) if it was made for another cluster.
  static std::unique_ptr<Ledger> open(const Topology& topology,
                                      const std::filesystem::path& path,
                                      LedgerOptions options = {});

  // A device takes part from its clock's zero on; until then nothing happens anywhere. The process
  // that calls this is watched.
  void join(int device);
  // It posts no more. Others may still receive what it has posted.
  void leave(int device);

  // Moves the compute clock. To be called before the op runs. Requires: duration >= 0.
  void compute(int device, Nanoseconds duration);
  // Posts at the compute clock. `name` is for errors.
  int post(int device,
           ExchangeKey key,
           int num_members,
           std::span<const RoundStep> steps,
           const std::string& name,
           Turn turn = {});
  // From here to finish_wait() the device holds nobody back.
  void begin_wait(int device, int exchange);
  // Blocks until the exchange is complete; the compute clock is then at least that time. Releases
  // the exchange. Throws Error(kEnvironment): aborted; a device has died and nobody else can go on;
  // nobody has moved for too long (names who holds the clock).
  FlowEngine::Times finish_wait(int device, int exchange);
  void release(int exchange);

  // Ends every wait of this process with an error, now and from now on. The first cause stays.
  void abort(const std::string& cause);
  // Returns "12.3 ms: fast/0/0 computes, fast/0/1 waits for all_reduce w, slow/0/0 has not joined".
  std::string describe();

  Nanoseconds now(int device);  // of its compute clock
  // Sleeps until the pace says that the device's compute clock is reached.
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
