#pragma once

// The store over c10d's TCP store.

#include <chrono>
#include <memory>
#include <string>

#include "medley/runtime/store.h"

namespace medley {

// Silences warnings of c10d, which add only stack traces to thrown errors.
void print_errors_of_c10d_only();

// Connects to the TCP store at host:port, or first serves it at this address only (port 0: any free
// one). All keys get the prefix. Throws Error(kEnvironment) if no server answers in time.
std::unique_ptr<Store> make_c10d_store(const std::string& host,
                                       int port,
                                       bool serve,
                                       const std::string& prefix,
                                       std::chrono::milliseconds timeout);

}  // namespace medley
