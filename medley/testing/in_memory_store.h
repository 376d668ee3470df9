#pragma once

// The store of one process, for tests and for threads as devices. Every member has its own
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
  // From now on all that the member asks for throws Error(kEnvironment), its waits included.
  void lose(int member);

 private:
  struct State;
  class Connection;
  std::shared_ptr<State> state_;
};

}  // namespace medley
