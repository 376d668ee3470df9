#include "medley/runtime/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <set>

#include "medley/base/at.h"
#include "medley/program/commit.h"
#include "medley/program/symbols_read.h"
#include "medley/runtime/exchange.h"

namespace medley {
struct Interpreter::PreparedStep {
  enum class Kind : uint8_t { kSegment, kPost, kWait } kind = Kind::kSegment;
  std::unique_ptr<PreparedSegment> segment;  // or
  size_t communication = 0;
  int lane = -1, depth = 1;  // for transfers
  Exchange exchange;         // for posts; waits use its name and kind
  const std::vector<ValueId>* inputs = nullptr;
  const std::vector<ValueId>* outputs = nullptr;
  const std::vector<ValueId>* dies = nullptr;
};

struct Interpreter::PreparedFunction {
  std::vector<const PreparedStep*> steps;
  const std::vector<Assign>* assigns = nullptr;
};

struct Interpreter::PreparedCall {
  Call call;
  std::string name, category;
  const PreparedFunction* function;
  std::span<const PreparedStep* const> steps;  // steps of the function
  FrameUse use;
};

// A program prepared for this device: its calls and their parts.
struct Interpreter::Prepared {
  Prepared(std::shared_ptr<const Program> of,
           const LoweredStage& own,
           int on_device,
           Executor& with,
           const FrameSchedule& schedule);

  std::shared_ptr<const Program> program;
  const LoweredStage& stage;
  int device;
  Executor& executor;
  std::vector<PreparedCall> calls;

 private:
  // By the values of the read symbols.
  template <typename Of>
  struct Shared {
    std::vector<Symbol> symbols;
    std::map<std::vector<int64_t>, std::unique_ptr<Of>> by_values;
  };
  // Prepares once for micro-batches whose tables agree in the read symbols.
  const PreparedFunction& prepare(FunctionKind kind, const std::vector<int64_t>& table);
  const PreparedStep& prepare(const Step& step, const std::vector<int64_t>& table);

  std::map<const Step*, Shared<PreparedStep>> steps_;
  std::map<FunctionKind, Shared<PreparedFunction>> functions_;
};

Interpreter::Prepared::Prepared(std::shared_ptr<const Program> of,
                                const LoweredStage& own,
                                int on_device,
                                Executor& with,
                                const FrameSchedule& schedule)
    : program(std::move(of)), stage(own), device(on_device), executor(with) {
  for (size_t i = 0; i < stage.calls.size(); ++i) {
    const Call& call = stage.calls[i];
    const auto& table = stage.tables.at(at(call.microbatch)).at(at(device));
    const PreparedFunction& function = prepare(call.function, table);
    const size_t count = steps_of(stage, call).size();
    calls.push_back({call,
                     to_string(call),
                     function_name(call.function),
                     &function,
                     std::span(function.steps).subspan(at(call.first), count),
                     schedule.uses[i]});
  }
}

const Interpreter::PreparedFunction& Interpreter::Prepared::prepare(
    FunctionKind kind, const std::vector<int64_t>& table) {
  const Function& function = find_function(stage, kind);
  const auto [shared, is_first] = functions_.try_emplace(kind);
  if (is_first) shared->second.symbols = symbols_read(stage, function.steps);
  std::unique_ptr<PreparedFunction>& prepared =
      shared->second.by_values[values_of(shared->second.symbols, table)];
  if (prepared) return *prepared;
  prepared = std::make_unique<PreparedFunction>();
  prepared->assigns = &function.assigns;
  for (const Step& step : function.steps) prepared->steps.push_back(&prepare(step, table));
  return *prepared;
}

const Interpreter::PreparedStep& Interpreter::Prepared::prepare(const Step& step,
                                                                const std::vector<int64_t>& table) {
  const auto [shared, is_first] = steps_.try_emplace(&step);
  if (is_first) shared->second.symbols = symbols_read(stage, std::span(&step, 1));
  std::unique_ptr<PreparedStep>& prepared =
      shared->second.by_values[values_of(shared->second.symbols, table)];
  if (prepared) return *prepared;
  prepared = std::make_unique<PreparedStep>();
  if (const auto* segment = std::get_if<Segment>(&step)) {
    prepared->kind = PreparedStep::Kind::kSegment;
    prepared->segment = executor.prepare(stage, *segment, table);
    return *prepared;
  }
  const auto* post = std::get_if<Post>(&step);
  prepared->kind = post ? PreparedStep::Kind::kPost : PreparedStep::Kind::kWait;
  prepared->communication = at(post ? post->communication : std::get<Wait>(step).communication);
  const Communication& communication = stage.communications.at(prepared->communication);
  prepared->exchange = make_exchange(stage, communication, device, table);
  prepared->lane = communication.lane;
  prepared->depth = communication.depth;
  prepared->inputs = &communication.inputs;
  prepared->outputs = &communication.outputs;
  if (post) prepared->dies = &post->dies;
  return *prepared;
}

Interpreter::Interpreter(const Program& program,
                         int stage,
                         int device,
                         Executor& executor,
                         Transport& transport,
                         Clock& clock,
                         InterpreterOptions options)
    : stage_index_(stage),
      device_(device),
      executor_(executor),
      is_followed_(executor.follows()),
      transport_(transport),
      clock_(clock),
      options_(std::move(options)),
      outstanding_(program.stages.at(at(stage)).communications.size()),
      receiving_(program.stages[at(stage)]),
      batch_(program.stages[at(stage)].tables.size()) {
  const LoweredStage& own = program.stages[at(stage)];
  MEDLEY_CHECK_EQ(own.lifetimes.size(), own.graph.values.size());
  if (options_.device_name.empty())
    options_.device_name = fmt::format("device {}", own.devices.at(at(device)));
  run_frame_ = executor_.make_frame(own);
  schedule_ = schedule_frames(own);
  for (int i = 0; i < schedule_.num_frames; ++i) frames_.push_back(executor_.make_frame(own));
  // The caller keeps the program alive.
  use(std::shared_ptr<const Program>(std::shared_ptr<const Program>(), &program));
  spreads_ = spreads_after_commit(own);
  const std::vector<ValueId> read_behind = reported(own);
  std::set<ValueId> kept(read_behind.begin(), read_behind.end());
  if (options_.keep_gradients)
    for (const PlacedValue& gradient : own.gradients) kept.insert(gradient.input.value);
  for (ValueId value = 0; value < static_cast<ValueId>(own.lifetimes.size()); ++value)
    if (own.lifetimes[at(value)] == Lifetime::kStep)
      (kept.contains(value) ? kept_ : not_kept_).push_back(value);
}

Interpreter::~Interpreter() = default;

const LoweredStage& Interpreter::stage() const { return now_->stage; }

void Interpreter::use(const std::shared_ptr<const Program>& program) {
  std::unique_ptr<Prepared>& prepared = programs_[program.get()];
  if (!prepared) {
    const LoweredStage& own = program->stages.at(at(stage_index_));
    if (now_) MEDLEY_CHECK_EQ(own.calls.size(), stage().calls.size());
    prepared = std::make_unique<Prepared>(program, own, device_, executor_, schedule_);
  }
  now_ = prepared.get();
}

void Interpreter::set_batch(int microbatch, BatchInputs inputs) {
  for (const auto& [value, buffer] : inputs)
    MEDLEY_CHECK(buffer && stage().lifetimes.at(at(value)) == Lifetime::kMicrobatch);
  batch_.at(at(microbatch)) = std::move(inputs);
}

void Interpreter::check_batch() const {
  for (size_t microbatch = 0; microbatch < batch_.size(); ++microbatch) {
    for (const Input& input : stage().graph.inputs) {
      if (stage().lifetimes[at(input.value)] != Lifetime::kMicrobatch) continue;
      const BatchInputs& given = batch_[microbatch];
      if (std::none_of(given.begin(), given.end(), [&](const auto& each) {
            return each.first == input.value;
          }))
        throw Error(Blame::kCaller,
                    fmt::format("{}: micro-batch {}: the batch has no tensor \"{}\"",
                                options_.device_name,
                                microbatch,
                                input.name));
    }
  }
}

StepReport Interpreter::run_step() {
  if (failed_)
    throw Error(Blame::kUs,
                options_.device_name +
                    ": a step after one that failed: expected a new trainer, which goes on from a "
                    "checkpoint (load)");
  check_batch();
  failed_ = true;  // until the end
  if (options_.keep_undo) keep_for_undo();
  reached_ = Reached::kBefore;
  report_ = {};
  report_.start = clock_.now();
  empty_step_values(true);
  current_call_ = nullptr;
  current_step_ = nullptr;
  run_safely([&] { run_calls(); });
  failed_ = false;
  return end_step();
}

template <typename Body>
void Interpreter::run_safely(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    rethrow(error.blame(), error.what());
  } catch (const std::bad_alloc&) {
    rethrow(Blame::kEnvironment, "out of memory");
  } catch (const std::exception& error) {
    rethrow(Blame::kUs, error.what());
  }
}

void Interpreter::run_calls() {
  receiving_.restart();
  receive_ahead();
  for (const PreparedCall& call : now_->calls) {
    current_call_ = &call;
    current_step_ = nullptr;
    run_call(call);
  }
  for (auto& [lane, sending] : sending_)
    for (; !sending.empty(); sending.pop_front()) {
      current_step_ = sending.front().second;
      finish(sending.front().first, current_step_->exchange);
    }
  for (size_t i = 0; i < outstanding_.size(); ++i)
    if (!outstanding_[i].empty())
      throw Error(Blame::kUs,
                  stage().communications[i].name + ": posted but not awaited in the step");
}

StepReport Interpreter::end_step() {
  empty_step_values(false);
  report_.end = clock_.now();
  reached_ = Reached::kDone;
  return std::move(report_);
}

size_t Interpreter::number_of(const PreparedCall& call) const {
  return at(&call - now_->calls.data());
}

inline void Interpreter::follow(const PreparedCall& call, Frames frames, int step) {
  if (is_followed_) executor_.follow(stage(), frames, number_of(call), step);
}

void Interpreter::run_call(const PreparedCall& call) {
  const Frames frames{run_frame_.get(), frames_[at(call.use.frame)].get()};
  follow(call, frames, -1);
  if (call.use.begins && call.call.function != FunctionKind::kUpdate)
    for (auto& [value, buffer] : batch_[at(call.call.microbatch)])
      executor_.write(stage(), frames, value, std::exchange(buffer, nullptr));
  step_number_ = 0;
  run_steps(call, frames);
  end_call(call, frames);
}

void Interpreter::run_steps(const PreparedCall& call, Frames frames) {
  for (; step_number_ < call.steps.size(); ++step_number_) {
    const PreparedStep& step = *call.steps[step_number_];
    current_step_ = &step;
    if (options_.on_step) options_.on_step(place());
    if (step.kind != PreparedStep::Kind::kSegment)
      follow(call, frames, static_cast<int>(step_number_));
    switch (step.kind) {
      case PreparedStep::Kind::kSegment: {
        const Nanoseconds start = options_.trace ? clock_.now() : Nanoseconds{};
        executor_.run(*step.segment, frames);
        if (options_.trace) record(Stream::kCompute, call.name, call.category, start, clock_.now());
        break;
      }
      case PreparedStep::Kind::kPost:
        post(step, frames);
        break;
      case PreparedStep::Kind::kWait:
        wait(step, frames);
        break;
    }
  }
}

void Interpreter::end_call(const PreparedCall& call, Frames frames) {
  current_step_ = nullptr;
  if (call.call.ends()) assign(*call.function, frames);
  for (ValueId value : call.use.leftovers) executor_.write(stage(), frames, value, nullptr);
  follow(call, frames, static_cast<int>(call.steps.size()));
  if (call.use.ends && call.call.function != FunctionKind::kUpdate)
    batch_[at(call.call.microbatch)].clear();
}

// Posts after dying values have left their slots, so that the transport may have the only
// reference.
void Interpreter::post(const PreparedStep& step, Frames frames) {
  std::vector<Buffer> inputs;
  inputs.reserve(step.inputs->size());
  for (ValueId value : *step.inputs) {
    inputs.push_back(executor_.read(stage(), frames, value));
    if (!inputs.back()) throw Error(Blame::kUs, fmt::format("input %{} is empty", value));
  }
  for (ValueId value : *step.dies) executor_.write(stage(), frames, value, nullptr);
  if (step.lane >= 0) return send(step, std::move(inputs));
  Outstanding& outstanding = outstanding_[step.communication].emplace_back();
  outstanding.since = clock_.now();
  const Exchange& exchange = step.exchange;
  if (exchange.group.size() == 1 && traits_of(exchange.kind).is_whole()) {
    outstanding.outputs = std::move(inputs);
    return;
  }
  Exchange filled = exchange;
  filled.inputs = std::move(inputs);
  outstanding.pending = transport_.post(std::move(filled));
}

void Interpreter::wait(const PreparedStep& step, Frames frames) {
  if (step.lane >= 0) return receive(step, frames);
  std::deque<Outstanding>& posted = outstanding_[step.communication];
  if (posted.empty()) throw Error(Blame::kUs, "awaited before it was posted");
  Outstanding outstanding = std::move(posted.front());
  posted.pop_front();
  const bool commits = static_cast<int>(step.communication) == stage().commit;
  if (commits) reached_ = Reached::kAtCommit;
  std::vector<Buffer> outputs = finish(outstanding, step.exchange);
  if (commits) note_commit(outputs);
  store(step, std::move(outputs), frames);
}

// Records the commit, after which all devices have done all earlier steps.
void Interpreter::note_commit(const std::vector<Buffer>& outputs) {
  reached_ = Reached::kCommitted;
  committed_ = outputs;
  if (undo_.size() > 1) undo_.resize(1);
}

// Keeps old values. Buffers change in the forward phase, and spread values may reach only some
// devices.
void Interpreter::keep_for_undo() {
  std::vector<std::pair<ValueId, Buffer>> kept;
  for (const Input& input : stage().graph.inputs)
    if (input.kind == InputKind::kBuffer ||
        (spreads_ && (input.kind == InputKind::kParameter || input.kind == InputKind::kState)))
      kept.emplace_back(input.value, read(input.value));
  undo_.push_front(std::move(kept));
  if (undo_.size() > (spreads_ ? 2 : 1)) undo_.pop_back();
}

void Interpreter::undo(int steps) {
  MEDLEY_CHECK(steps > 0 && at(steps) <= undo_.size());
  for (const auto& [value, buffer] : undo_[at(steps - 1)]) write(value, buffer);
  undo_.erase(undo_.begin(), undo_.begin() + steps);
  reached_ = Reached::kDone;  // with the step before
}

StepReport Interpreter::finish_step(const std::vector<Buffer>& committed) {
  MEDLEY_CHECK(reached_ == Reached::kAtCommit || reached_ == Reached::kCommitted);
  MEDLEY_CHECK(!spreads_ && current_call_ && current_step_);
  const PreparedCall& call = *current_call_;
  const Frames frames{run_frame_.get(), frames_[at(call.use.frame)].get()};
  run_safely([&] {
    if (reached_ == Reached::kAtCommit) {
      note_commit(committed);
      store(*current_step_, committed, frames);
      ++step_number_;
    }
    run_steps(call, frames);
    end_call(call, frames);
  });
  return end_step();
}

std::vector<Buffer> Interpreter::finish(Outstanding& outstanding, const Exchange& exchange) {
  if (!outstanding.pending) return std::move(outstanding.outputs);
  const Nanoseconds start = clock_.now();
  std::vector<Buffer> outputs = outstanding.pending->wait();
  const Nanoseconds end = clock_.now();
  report_.waiting += end - start;
  if (options_.trace) {
    const auto ran = outstanding.pending->times().value_or(std::pair(outstanding.since, end));
    record(Stream::kCompute, exchange.name, std::string(kWaiting), start, end);
    record(Stream::kCommunication, exchange.name, to_string(exchange.kind), ran.first, ran.second);
    report_.events.back().args = {{"bytes", std::to_string(exchange.bytes)}};
  }
  outstanding.pending.reset();
  return outputs;
}

void Interpreter::store(const PreparedStep& step, std::vector<Buffer> outputs, Frames frames) {
  MEDLEY_CHECK_EQ(outputs.size(), step.outputs->size());
  for (size_t i = 0; i < outputs.size(); ++i)
    executor_.write(stage(), frames, (*step.outputs)[i], std::move(outputs[i]));
}

void Interpreter::send(const PreparedStep& step, std::vector<Buffer> inputs) {
  auto& sending = sending_[step.lane];
  while (static_cast<int>(sending.size()) >= step.depth) {
    finish(sending.front().first, sending.front().second->exchange);
    sending.pop_front();
  }
  Exchange filled = step.exchange;
  filled.inputs = std::move(inputs);
  Outstanding outstanding{clock_.now(), nullptr, {}};
  outstanding.pending = transport_.post(std::move(filled));
  sending.emplace_back(std::move(outstanding), &step);
}

void Interpreter::receive_ahead() {
  receiving_.post_ahead([&](const Receipt& receipt) {
    const PreparedStep& step = *now_->calls[receipt.call].steps[receipt.step];
    return Outstanding{clock_.now(), transport_.post(step.exchange), {}};
  });
}

void Interpreter::receive(const PreparedStep& step, Frames frames) {
  Outstanding outstanding = receiving_.take(number_of(*current_call_), step_number_);
  store(step, finish(outstanding, step.exchange), frames);
  receive_ahead();
}

// Reads all before any write: values may change places.
void Interpreter::assign(const PreparedFunction& function, Frames frames) {
  std::vector<Buffer> buffers;
  for (const Assign& each : *function.assigns) {
    buffers.push_back(executor_.read(stage(), frames, each.from));
    if (!buffers.back()) throw Error(Blame::kUs, fmt::format("new value %{} is empty", each.from));
  }
  for (size_t i = 0; i < buffers.size(); ++i)
    executor_.write(stage(), frames, (*function.assigns)[i].to, std::move(buffers[i]));
}

void Interpreter::empty_step_values(bool all) {
  const Frames frames{run_frame_.get(), nullptr};
  for (ValueId value : not_kept_) executor_.write(stage(), frames, value, nullptr);
  if (!all) return;
  for (ValueId value : kept_) executor_.write(stage(), frames, value, nullptr);
}

void Interpreter::record(
    Stream stream, std::string name, std::string category, Nanoseconds start, Nanoseconds end) {
  report_.events.push_back({stage().devices[at(device_)],
                            stream,
                            std::move(name),
                            std::move(category),
                            start,
                            end - start,
                            {}});
}

void Interpreter::rethrow(Blame blame, const std::string& what) {
  // A started update has changed its operands.
  const bool computes = current_step_ && current_step_->kind == PreparedStep::Kind::kSegment;
  if (reached_ == Reached::kCommitted && computes && !spreads_) reached_ = Reached::kTorn;
  const Place at = place();
  throw Error(blame,
              fmt::format("{}: stage {}: {}: {}{}{}",
                          options_.device_name,
                          stage_index_,
                          at.call,
                          at.exchange,
                          at.exchange.empty() ? "" : ": ",
                          what));
}

Buffer Interpreter::read(ValueId value) {
  MEDLEY_CHECK(stage().lifetimes.at(at(value)) != Lifetime::kMicrobatch);
  return executor_.read(stage(), {run_frame_.get(), nullptr}, value);
}

void Interpreter::write(ValueId value, Buffer buffer) {
  MEDLEY_CHECK(stage().lifetimes.at(at(value)) == Lifetime::kRun);
  executor_.write(stage(), {run_frame_.get(), nullptr}, value, std::move(buffer));
}

Place Interpreter::place() const {
  Place place;
  if (current_call_) place.call = current_call_->name;
  if (current_step_) place.exchange = current_step_->exchange.name;
  return place;
}

}  // namespace medley
