#include "medley/run/run_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "medley/base/at.h"
#include "medley/base/low_priority.h"
#include "medley/checkpoint/match.h"
#include "medley/checkpoint/read.h"
#include "medley/checkpoint/write.h"
#include "medley/kernels/arguments.h"
#include "medley/kernels/spare_copies.h"
#include "medley/kernels/tensor_buffer.h"
#include "medley/prepare/prepare.h"

namespace medley {
namespace {

const HoldingStage* holding(const HeldValue& value, int stage) {
  const auto found = std::ranges::find(value.stages, stage, &HoldingStage::stage);
  return found == value.stages.end() ? nullptr : &*found;
}

// Returns "fast.0.1.safetensors".
std::string file_name(const Run& run, int number, const std::string& prefix) {
  std::string name = prefix + run.worker().device_names().at(at(number));
  std::ranges::replace(name, '/', '.');
  return name + ".safetensors";
}

// Loaded tensors, and the devices that receive them.
class Loading {
 public:
  Loading(Run& run,
          const std::vector<HeldValue>& values,
          const Manifest& manifest,
          bool parameters_only)
      : run_(run), parameters_only_(parameters_only) {
    for (const StoredValue& value : manifest.values) there_.emplace(value.kind, value.name);
    for (const HeldValue& value : values) held_[{value.kind, value.name}] = &value;
    // Absent buffers never change, and a loss scale starts from its first: both stay unchanged.
    for (const HeldValue& value : values)
      if (there_.contains({value.kind, value.name}) ||
          (value.kind != "buffer" && !is_loss_scale(value.kind, value.name)))
        add(value);
  }

  const std::vector<WantedBoxes>& wanted() const { return wanted_; }

  void give() {
    for (const Target& target : targets_) {
      // Devices of one process with the same box do not share memory.
      at::Tensor tensor = target.is_first ? target.tensor : target.tensor.clone();
      if (target.is_master) tensor = tensor.to(at::kFloat);
      interpreter(target.device).write(target.value, to_buffer(tensor.to(target.where)));
    }
  }

 private:
  struct Target {
    int device;
    ValueId value;
    at::Tensor tensor;
    c10::Device where;
    bool is_first, is_master;
  };

  Interpreter& interpreter(int i) { return run_.worker().devices().interpreter(i); }

  void add(const HeldValue& value) {
    const bool is_master = value.role.kind == StateRole::Kind::kMaster;
    if (parameters_only_ && value.kind == "state" && !is_master) return;
    std::map<std::pair<int, int>, at::Tensor> known;  // by stage and box
    for (int i = 0; i < run_.worker().devices().size(); ++i) {
      const DevicePlace place = run_.worker().devices().place(i);
      const HoldingStage* stage = holding(value, place.stage);
      if (stage == nullptr) continue;
      const int box = stage->layout.box_of[at(place.index)];
      const at::Tensor like = shard(value, i, stage->value);
      if (box == kNoBox) {
        // A run without state also lacks the empty shards, which ops read.
        if (like.defined() && like.numel() == 0)
          targets_.push_back({i, stage->value, like, like.device(), true, false});
        continue;
      }
      at::Tensor& tensor = known[{place.stage, box}];
      const bool is_first = !tensor.defined();
      if (is_first) tensor = want(source_of(value), *stage, box, like);
      targets_.push_back(
          {i, stage->value, tensor, like.device(), is_first, parameters_only_ && is_master});
    }
  }

  // Returns the source of a fresh master copy or average: the parameter, or its master copy.
  const HeldValue& source_of(const HeldValue& value) const {
    const bool is_new = parameters_only_ || (value.role.kind == StateRole::Kind::kAverage &&
                                             !there_.contains({value.kind, value.name}));
    if (value.kind != "state" || !is_new) return value;
    const auto master = held_.find({"state", std::string(kMasterState) + value.role.of});
    return *(parameters_only_ || master == held_.end() ? held_.at({"parameter", value.role.of})
                                                       : master->second);
  }

  // Returns a device's shard or, for a run without state, equal memory.
  at::Tensor shard(const HeldValue& value, int i, ValueId local) {
    const Buffer there = interpreter(i).read(local);
    return there ? to_tensor(there) : run_.empty_shard(value.kind, value.name, i);
  }

  at::Tensor want(const HeldValue& value,
                  const HoldingStage& stage,
                  int box,
                  const at::Tensor& like) {
    const at::Tensor tensor = at::empty(like.sizes(), to_scalar_type(value.dtype));
    wanted_.push_back({value.kind,
                       value.name,
                       value.dtype,
                       value.shape,
                       {stage.layout.factors, {stage.layout.boxes[at(box)]}, {}, {}},
                       {static_cast<char*>(tensor.mutable_data_ptr())}});
    return tensor;
  }

  Run& run_;
  bool parameters_only_;
  std::set<std::pair<std::string, std::string>> there_;  // kind and name, in the checkpoint
  std::map<std::pair<std::string, std::string>, const HeldValue*> held_;
  std::vector<WantedBoxes> wanted_;
  std::vector<Target> targets_;
};

}  // namespace

// The remaining work; one thread at a time takes the next piece.
struct StateWriter::Work {
  struct OneFile {
    int writer;
    bool is_copied;  // stored tensors are the device's own, which copies before changes
    std::vector<at::Tensor> held;
    TensorFileWriter file;
  };

  // Returns whether no work is left.
  bool next() {
    std::deque<OneFile> over;  // freed after the lock, as in abandon()
    const bool done = next(over);
    for (OneFile& each : over)
      for (at::Tensor& tensor : each.held)
        if (each.is_copied) keep_spare(std::move(tensor));
    return done;
  }

  bool next(std::deque<OneFile>& over) {
    const std::lock_guard lock(taken);
    if (left.empty()) return true;
    try {
      if (!left.front().file.next()) return false;
      written.emplace_back(left.front().writer, left.front().file.file());
      over.push_back(std::move(left.front()));  // written tensors are released
      left.pop_front();
    } catch (...) {
      error = std::current_exception();
      over.swap(left);
    }
    is_done = left.empty();
    return is_done;
  }

  int64_t bytes_left() {
    const std::lock_guard lock(taken);
    int64_t bytes = 0;
    for (const OneFile& each : left) bytes += each.file.left();
    return bytes;
  }

  void rest_until(std::chrono::steady_clock::time_point then) {
    std::unique_lock lock(taken);
    wanted.wait_until(lock, then, [this] { return is_wanted.load(); });
  }

  void want() {
    is_wanted = true;
    wanted.notify_all();
  }

  std::mutex taken;
  std::condition_variable wanted;
  std::deque<OneFile> left;
  Written written;
  std::exception_ptr error;
  std::atomic<bool> is_done = false;
  std::atomic<bool> is_wanted = false;  // by another thread
};

StateWriter::StateWriter(Run& run,
                         const ProgramWritePlan& planned,
                         Files& files,
                         const std::string& folder,
                         std::chrono::nanoseconds spread,
                         const std::string& prefix)
    : work_(std::make_shared<Work>()) {
  Devices& devices = run.worker().devices();
  const WritePlan& write_plan = planned.write_plan;
  for (int i = 0; i < devices.size(); ++i) {
    const auto writer = std::ranges::find(write_plan.writers, devices.number(i));
    if (writer == write_plan.writers.end()) continue;
    const size_t w = at(writer - write_plan.writers.begin());
    bool is_copied = true;
    std::map<int, at::Tensor> known;
    std::vector<TensorSource> sources;
    for (const BoxWrite& each : write_plan.boxes[w]) {
      const HoldingStage& stage = planned.held[at(each.value)].stages[at(each.holder)];
      at::Tensor& tensor = known[each.value];
      if (!tensor.defined()) {
        tensor = to_tensor(devices.interpreter(i).read(stage.value));
        is_copied &= tensor.is_cpu();
        tensor = tensor.cpu().contiguous();
      }
      sources.push_back(source_of(write_plan.values[at(each.value)],
                                  at(each.box),
                                  stage.layout.factors,
                                  stage.layout.boxes[at(stage.layout.box_of[at(each.device)])],
                                  static_cast<const char*>(tensor.const_data_ptr())));
    }
    std::vector<at::Tensor> held;
    for (const auto& [value, tensor] : known) {
      bytes_ += static_cast<int64_t>(tensor.nbytes());
      held.push_back(tensor);
    }
    work_->left.push_back({static_cast<int>(w),
                           is_copied,
                           std::move(held),
                           {files, folder, file_name(run, *writer, prefix), std::move(sources)}});
  }
  bytes_ = std::max<int64_t>(0, bytes_ - spare_bytes());
  work_->is_done = work_->left.empty();
  // Detached, since its end may take long if others compute. Without work left it only references
  // the work.
  std::thread([work = work_, spread = std::chrono::duration<double>(spread)] {
    run_behind_all_others();
    const auto start = std::chrono::steady_clock::now();
    const auto all = static_cast<double>(std::max<int64_t>(work->bytes_left(), 1));
    while (!work->is_wanted && !work->next()) {
      const auto due = spread * (1 - static_cast<double>(work->bytes_left()) / all);
      work->rest_until(start + std::chrono::duration_cast<std::chrono::nanoseconds>(due));
    }
  }).detach();
}

bool StateWriter::is_done() const { return work_->is_done; }

bool StateWriter::next() {
  work_->want();
  return work_->next();
}

StateWriter::Written StateWriter::finish() {
  while (!next()) {
  }
  if (work_->error) std::rethrow_exception(work_->error);
  return work_->written;
}

void StateWriter::abandon() {
  work_->want();
  // Releasing a tensor may need Python's lock, which a waiter for this mutex may have.
  std::deque<Work::OneFile> over;
  const std::lock_guard lock(work_->taken);
  over.swap(work_->left);
}

void require_match(Run& run,
                   const std::string& folder,
                   const Manifest& manifest,
                   bool parameters_only) {
  require_match(manifest, folder, held_values(run.worker().program()), parameters_only);
}

void load_state(const std::vector<LoadedRun>& runs,
                Files& files,
                const std::string& folder,
                const Manifest& manifest,
                bool parameters_only) {
  std::deque<std::vector<HeldValue>> values;
  std::deque<Loading> loadings;
  for (const LoadedRun& each : runs) {
    values.push_back(held_values(each.run->worker().program()));
    loadings.emplace_back(*each.run, values.back(), each.part, parameters_only);
    std::vector<WantedBoxes> wanted = loadings.back().wanted();
    for (WantedBoxes& one : wanted) one.name = stored_name(one.kind, one.name, each.prefix);
    read_checkpoint(files, folder, manifest, wanted);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (parameters_only) runs[i].run->clear_state();
    loadings[i].give();
  }
}

}  // namespace medley
