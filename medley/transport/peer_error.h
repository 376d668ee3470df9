#pragma once

// What Gloo says of a connection, in a sentence for people.

#include <map>
#include <string>

namespace medley {

// "[/__w/pytorch/.../pair.cc:553] Connection closed by peer [10.0.0.2]:45209. This is typically
// ..." becomes "10.0.0.2:45209 has closed the connection"; `names` says who listens at an address,
// "[10.0.0.2]:45209".
std::string peer_error(const std::string& text, const std::map<std::string, std::string>& names);

}  // namespace medley
