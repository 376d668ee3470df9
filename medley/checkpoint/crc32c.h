#pragma once

#include <cstdint>
#include <string_view>

namespace medley {

// Returns the CRC-32C (Castagnoli, RFC 3720) of bytes. `before`: the checksum of the preceding
// bytes.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

}  // namespace medley
