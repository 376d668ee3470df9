#include "medley/testing/in_memory_store.h"

#include <fmt/format.h>

#include "medley/base/error.h"

namespace medley {

struct InMemoryStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::set<int> lost;
};

class InMemoryStore::Connection final : public Store {
 public:
  Connection(std::shared_ptr<State> state, int member)
      : state_(std::move(state)), member_(member) {}

  void set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(state_->mutex);
    check(key);
    state_->values[key] = value;
    state_->changed.notify_all();
  }

  std::string set_first(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(state_->mutex);
    check(key);
    const auto [place, is_new] = state_->values.try_emplace(key, value);
    if (is_new) state_->changed.notify_all();
    return place->second;
  }

  void append(const std::string& key, const std::string& text) override {
    const std::scoped_lock lock(state_->mutex);
    check(key);
    state_->values[key] += text;
    state_->changed.notify_all();
  }

  std::optional<std::string> get(const std::string& key) override {
    const std::scoped_lock lock(state_->mutex);
    check(key);
    return find(key);
  }

  std::string wait(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(
        lock, timeout, [&] { return state_->lost.contains(member_) || find(key); });
    check(key);
    if (auto value = find(key)) return *value;
    throw Error(Blame::kEnvironment,
                fmt::format("store: no value within {} ms: {}", timeout.count(), key));
  }

 private:
  std::optional<std::string> find(const std::string& key) const {
    auto found = state_->values.find(key);
    return found == state_->values.end() ? std::nullopt : std::make_optional(found->second);
  }
  void check(const std::string& key) const {
    if (state_->lost.contains(member_))
      throw Error(Blame::kEnvironment,
                  fmt::format("store: member {} has lost its connection: {}", member_, key));
  }

  std::shared_ptr<State> state_;
  int member_;
};

InMemoryStore::InMemoryStore() : state_(std::make_shared<State>()) {}
InMemoryStore::~InMemoryStore() = default;

std::unique_ptr<Store> InMemoryStore::connect(int member) {
  return std::make_unique<Connection>(state_, member);
}

void InMemoryStore::lose(int member) {
  const std::scoped_lock lock(state_->mutex);
  state_->lost.insert(member);
  state_->changed.notify_all();
}

}  // namespace medley
