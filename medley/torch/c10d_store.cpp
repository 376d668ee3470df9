#include "medley/torch/c10d_store.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

#include "medley/base/error.h"

namespace medley {
namespace {

constexpr std::chrono::milliseconds kPoll{10};

// Values begin with a mark, because the c10d store takes an empty value for none.
constexpr char kMark = '=';

std::vector<uint8_t> to_bytes(const std::string& value) {
  const std::string marked = kMark + value;
  return {marked.begin(), marked.end()};
}

std::string to_text(const std::vector<uint8_t>& bytes) {
  MEDLEY_CHECK(!bytes.empty() && bytes[0] == kMark);
  return {bytes.begin() + 1, bytes.end()};
}

class C10dStore final : public Store {
  // What the world does wrong names the key.
  template <typename F>
  auto reach(const std::string& key, F&& ask) {
    try {
      return ask();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& cause) {
      throw Error(Blame::kEnvironment, fmt::format("store: {}{}: {}", prefix_, key, cause.what()));
    }
  }

 public:
  C10dStore(c10::intrusive_ptr<c10d::TCPStore> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::string& value) override {
    reach(key, [&] { store_->set(prefix_ + key, to_bytes(value)); });
  }

  std::string set_first(const std::string& key, const std::string& value) override {
    return reach(key,
                 [&] { return to_text(store_->compareSet(prefix_ + key, {}, to_bytes(value))); });
  }

  std::optional<std::string> get(const std::string& key) override {
    return reach(key, [&]() -> std::optional<std::string> {
      if (!store_->check({prefix_ + key})) return std::nullopt;
      return to_text(store_->get(prefix_ + key));
    });
  }

  // Asks again and again: a blocking wait of c10d keeps all other threads out.
  std::string wait(const std::string& key, std::chrono::milliseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (true) {
      if (auto value = get(key)) return *value;
      if (std::chrono::steady_clock::now() > end)
        throw Error(
            Blame::kEnvironment,
            fmt::format("store: no value within {} ms: {}{}", timeout.count(), prefix_, key));
      std::this_thread::sleep_for(kPoll);
    }
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::string prefix_;
};

}  // namespace

std::unique_ptr<Store> make_c10d_store(const std::string& host,
                                       int port,
                                       bool serve,
                                       const std::string& prefix,
                                       std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;
  try {
    return std::make_unique<C10dStore>(c10::make_intrusive<c10d::TCPStore>(host, options), prefix);
  } catch (const std::exception& cause) {
    throw Error(Blame::kEnvironment, fmt::format("store at {}:{}: {}", host, port, cause.what()));
  }
}

}  // namespace medley
