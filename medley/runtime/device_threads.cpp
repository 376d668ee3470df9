#include "medley/runtime/device_threads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/runtime/fault.h"

namespace medley {

struct DeviceThreads::State {
  std::vector<std::string> names;
  std::function<void(const std::string&)> abort;
  std::chrono::milliseconds patience;

  std::mutex mutex;
  std::condition_variable changed;
  std::function<void(int)> body;
  int64_t round = 0;
  std::vector<int64_t> finished;  // [thread] last finished round
  std::optional<Fault> first;
  bool stop = false;
  std::vector<std::thread> threads;

  void serve(int device);
  void work(int device, const std::function<void(int)>& task);
  void fail(int device, const Fault& fault);
  bool all_finished() const {
    return std::all_of(finished.begin(), finished.end(), [this](int64_t r) { return r == round; });
  }
  std::vector<std::string> unfinished() const {
    std::vector<std::string> late;
    for (size_t i = 0; i < names.size(); ++i)
      if (finished[i] != round) late.push_back(names[i]);
    return late;
  }
};

void DeviceThreads::State::serve(int device) {
  int64_t& done = finished[at(device)];
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stop || done != round; });
    if (stop) return;
    const int64_t current = round;
    const std::function<void(int)> task = body;
    lock.unlock();
    work(device, task);
    lock.lock();
    done = current;
    changed.notify_all();
  }
}

void DeviceThreads::State::work(int device, const std::function<void(int)>& task) {
  if (const auto fault = fault_of([&] { task(device); })) fail(device, *fault);
}

void DeviceThreads::State::fail(int device, const Fault& fault) {
  const std::string prefix = names[at(device)] + ": ";
  const std::string cause = fault.what.starts_with(prefix) ? fault.what : prefix + fault.what;
  {
    const std::scoped_lock lock(mutex);
    if (first) return;
    first = Fault{fault.blame, cause};
    changed.notify_all();
  }
  abort(cause);
}

DeviceThreads::DeviceThreads(std::vector<std::string> names,
                             std::function<void(const std::string&)> abort,
                             std::chrono::milliseconds patience,
                             const MakeThread& make_thread)
    : state_(std::make_shared<State>()) {
  state_->names = std::move(names);
  state_->abort = std::move(abort);
  state_->patience = patience;
  state_->finished.resize(state_->names.size());
  for (int i = 0; i < static_cast<int>(state_->names.size()); ++i) {
    try {
      state_->threads.push_back(make_thread([state = state_, i] { state->serve(i); }));
    } catch (const std::exception& error) {
      end();
      throw Error(
          Blame::kEnvironment,
          fmt::format("{}: no thread for this device: {}", state_->names[at(i)], error.what()));
    }
  }
}

DeviceThreads::~DeviceThreads() { end(); }

void DeviceThreads::end() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  std::vector<bool> given_up;
  for (int64_t finished : state_->finished) given_up.push_back(finished != state_->round);
  std::vector<std::thread> threads = std::move(state_->threads);
  lock.unlock();
  for (size_t i = 0; i < threads.size(); ++i) given_up[i] ? threads[i].detach() : threads[i].join();
}

void DeviceThreads::run(std::function<void(int)> body) {
  std::unique_lock lock(state_->mutex);
  if (!state_->all_finished())
    throw state_->first
        ? Error(Blame::kEnvironment,
                fmt::format("still busy since an earlier failure: {}",
                            fmt::join(state_->unfinished(), ", ")))
        : Error(Blame::kCaller, "another thread is calling the same devices: one at a time may");
  state_->body = std::move(body);
  state_->first.reset();
  ++state_->round;
  state_->changed.notify_all();
  state_->changed.wait(lock, [this] { return state_->first || state_->all_finished(); });
  state_->changed.wait_for(lock, state_->patience, [this] { return state_->all_finished(); });
  if (state_->all_finished()) state_->body = nullptr;
  if (!state_->first) return;
  if (state_->all_finished()) throw Error(state_->first->blame, state_->first->what);
  throw Error(state_->first->blame,
              fmt::format("{}; not ended {} ms later: {}",
                          state_->first->what,
                          state_->patience.count(),
                          fmt::join(state_->unfinished(), ", ")));
}

}  // namespace medley
