#pragma once

// A store within one process, for tests and for threads as devices. Every member has its own
// connection, which can be cut.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "medley/runtime/store.h"

namespace medley {

class InMemoryStore {
 public:
  InMemoryStore();
  ~InMemoryStore();

  std::unique_ptr<Store> connect(int member);
  // Makes all requests and waits of the member throw Error(kEnvironment) from now on.
  void lose(int member);

 private:
  struct State;
  class Connection;
  std::shared_ptr<State> state_;
};

}  // namespace medley
