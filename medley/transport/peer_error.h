#pragma once

// A readable sentence for Gloo's connection errors.

#include <map>
#include <string>

namespace medley {

// Returns "10.0.0.2:45209 has closed the connection" for "[/__w/pytorch/.../pair.cc:553] Connection
// closed by peer [10.0.0.2]:45209. This is typically ...". `names`: the device at an address,
// "[10.0.0.2]:45209".
std::string peer_error(const std::string& text, const std::map<std::string, std::string>& names);

}  // namespace medley
