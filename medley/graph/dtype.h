#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace medley {

// Element types, in the order of the text form: f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool.
enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

std::string_view to_string(DType dtype);                  // "f32"
std::optional<DType> parse_dtype(std::string_view text);  // the inverse
int64_t bytes_per_element(DType dtype);
bool is_floating(DType dtype);

}  // namespace medley
