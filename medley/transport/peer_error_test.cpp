#include "medley/transport/peer_error.h"

#include <gtest/gtest.h>

namespace medley {
namespace {

TEST(PeerError, NamesThePeerAndNothingElse) {
  const std::map<std::string, std::string> names{{"[127.0.0.1]:45209", "fast/0/1"}};
  const std::string gloo =
      "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
      "peer [127.0.0.1]:45209. This is typically an indication of GLHF!\nframe #0";
  EXPECT_EQ(peer_error(gloo, names), "fast/0/1 has closed the connection");
  EXPECT_EQ(peer_error(gloo, {}), "127.0.0.1:45209 has closed the connection");
}

TEST(PeerError, KeepsWhatItDoesNotKnow) {
  EXPECT_EQ(
      peer_error("[a/pair.cc:1] Read error [::1]:7: Connection reset by peer", {{"[::1]:7", "b"}}),
      "Read error b: Connection reset by peer");
  EXPECT_EQ(peer_error("NCCL error: unhandled", {}), "NCCL error: unhandled");
}

}  // namespace
}  // namespace medley
