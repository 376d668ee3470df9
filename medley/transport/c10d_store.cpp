#include "medley/transport/c10d_store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "medley/base/error.h"
#include "medley/transport/first_line.h"

namespace medley {
namespace {

constexpr std::chrono::milliseconds kPoll{10};
constexpr int kErrorLevel = 2;  // c10's logging level

// Values begin with a mark, because the c10d store treats an empty value as absent.
constexpr char kMark = '=';

std::vector<uint8_t> to_bytes(const std::string& value) {
  const std::string marked = kMark + value;
  return {marked.begin(), marked.end()};
}

std::string to_text(const std::vector<uint8_t>& bytes) {
  const std::string text(bytes.begin(), bytes.end());
  if (text.empty() || text[0] != kMark)
    throw std::runtime_error(
        fmt::format("found {:?}, expected a value that a device of the run has "
                    "written: somebody else writes to the store",
                    text.substr(0, 60)));
  return text.substr(1);
}

class C10dStore final : public Store {
  // Environment errors name the key. A lost connection stays lost: c10d makes no new one, and would
  // print a stack trace at each use.
  template <typename F>
  auto reach(const std::string& key, F&& ask) {
    try {
      if (auto lost = this->lost()) throw std::runtime_error(*lost);
      return ask();
    } catch (const c10::DistNetworkError& cause) {
      const std::scoped_lock lock(mutex_);
      lost_ = first_line(cause);
      throw error(key, *lost_);
    } catch (const std::exception& cause) {
      throw error(key, first_line(cause));
    }
  }

  Error error(const std::string& key, const std::string& why) const {
    return {Blame::kEnvironment, fmt::format("store: {}{}: {}", prefix_, key, why)};
  }

  std::optional<std::string> lost() {
    const std::scoped_lock lock(mutex_);
    return lost_;
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

  void append(const std::string& key, const std::string& text) override {
    reach(key, [&] {
      store_->compareSet(prefix_ + key, {}, to_bytes(""));
      store_->append(prefix_ + key, {text.begin(), text.end()});
    });
  }

  std::optional<std::string> get(const std::string& key) override {
    return reach(key, [&]() -> std::optional<std::string> {
      if (!store_->check({prefix_ + key})) return std::nullopt;
      return to_text(store_->get(prefix_ + key));
    });
  }

  // Polls, because a blocking wait of c10d locks out all other threads.
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
  std::mutex mutex_;  // guards lost_
  std::optional<std::string> lost_;
};

[[noreturn]] void refuse(const std::string& host, int port, const std::string& why) {
  throw Error(Blame::kEnvironment, fmt::format("store at {}:{}: {}", host, port, why));
}

// Returns a socket that listens at this local address; c10d alone would listen at all of them.
int listen_at(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found))
    refuse(host, port, gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, freeaddrinfo);
  const int listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener, found->ai_addr, found->ai_addrlen) == 0 && listen(listener, SOMAXCONN) == 0)
    return listener;
  const std::string why = std::generic_category().message(errno);
  close(listener);
  refuse(host, port, why);
}

int port_of(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  MEDLEY_CHECK_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

void print_errors_of_c10d_only() {
  FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, kErrorLevel);
}

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
  if (serve) {
    options.masterListenFd = listen_at(host, port);
    options.port = static_cast<uint16_t>(port_of(*options.masterListenFd));
  }
  try {
    return std::make_unique<C10dStore>(c10::make_intrusive<c10d::TCPStore>(host, options), prefix);
  } catch (const std::exception& cause) {
    refuse(host, port, first_line(cause));
  }
}

}  // namespace medley
