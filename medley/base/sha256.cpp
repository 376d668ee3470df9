#include "medley/base/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "medley/base/error.h"

namespace medley {

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, 32> digest{};
  MEDLEY_CHECK_EQ(
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr), 1);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (unsigned char byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace medley
