#include "medley/checkpoint/crc32c.h"

#include <array>
#include <cstring>

namespace medley {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr size_t kWord = 8;
using Tables = std::array<std::array<uint32_t, 256>, kWord>;

// tables[k][b]: the effect of byte b on the checksum if k more follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < kWord; ++k)
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 255];
    }
  return tables;
}
constexpr Tables kTables = make_tables();

uint64_t word_at(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, kWord);
  return word;
}

uint32_t add_byte(uint32_t value, char byte) {
  return value >> 8 ^ kTables[0][(value ^ static_cast<unsigned char>(byte)) & 255];
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t add_words(uint32_t value, std::string_view& bytes) {
  uint64_t wide = value;
  for (; bytes.size() >= kWord; bytes.remove_prefix(kWord))
    wide = __builtin_ia32_crc32di(wide, word_at(bytes.data()));
  return static_cast<uint32_t>(wide);
}
const bool kHasInstruction = __builtin_cpu_supports("sse4.2");
#else
uint32_t add_words(uint32_t value, std::string_view&) { return value; }
constexpr bool kHasInstruction = false;
#endif

// Reads words in the byte order of little-endian machines, the only supported ones.
uint32_t add_words_by_table(uint32_t value, std::string_view& bytes) {
  for (; bytes.size() >= kWord; bytes.remove_prefix(kWord)) {
    const uint64_t word = word_at(bytes.data()) ^ value;
    value = 0;
    for (size_t i = 0; i < kWord; ++i) value ^= kTables[kWord - 1 - i][word >> (8 * i) & 255];
  }
  return value;
}

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t before) {
  uint32_t value = ~before;
  value = kHasInstruction ? add_words(value, bytes) : add_words_by_table(value, bytes);
  for (const char byte : bytes) value = add_byte(value, byte);
  return ~value;
}

}  // namespace medley
