#include "medley/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/json_place.h"
#include "medley/base/json_string.h"

namespace medley {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr int64_t kMostOffset = std::numeric_limits<int64_t>::max();
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<DType, const char*>, 10> kNames{{{DType::kF64, "F64"},
                                                                {DType::kF32, "F32"},
                                                                {DType::kF16, "F16"},
                                                                {DType::kBF16, "BF16"},
                                                                {DType::kI64, "I64"},
                                                                {DType::kI32, "I32"},
                                                                {DType::kI16, "I16"},
                                                                {DType::kI8, "I8"},
                                                                {DType::kU8, "U8"},
                                                                {DType::kBool, "BOOL"}}};

std::string name_of(DType dtype) {
  return std::ranges::find(kNames, dtype, &std::pair<DType, const char*>::first)->second;
}

DType read_dtype(const JsonPlace& place) {
  const std::string text = read_text(place);
  for (const auto& [dtype, name] : kNames)
    if (text == name) return dtype;
  place.refuse("F64, F32, F16, BF16, I64, I32, I16, I8, U8 or BOOL");
}

std::string integers(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += fmt::format("{}{}", text.empty() ? "" : ",", value);
  return "[" + text + "]";
}

FileTensor read_tensor(const JsonPlace& place, const std::string& name) {
  FileTensor tensor{.name = name, .shape = {}};
  std::vector<int64_t> offsets;
  read_object(place,
              {{"dtype", true, [&](const JsonPlace& p) { tensor.dtype = read_dtype(p); }},
               {"shape",
                true,
                [&](const JsonPlace& p) { tensor.shape = read_integers(p, 0, kMostOffset); }},
               {"data_offsets", true, [&](const JsonPlace& p) {
                  offsets = read_integers(p, 0, kMostOffset);
                  if (offsets.size() != 2 || offsets[0] > offsets[1]) p.refuse("[begin, end]");
                }}});
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  int64_t bytes = bytes_per_element(tensor.dtype);
  for (const int64_t size : tensor.shape)
    if (__builtin_mul_overflow(bytes, size, &bytes)) place.member("shape").refuse("sizes that fit");
  if (bytes != tensor.size())
    place.member("data_offsets").refuse(fmt::format("{} bytes between them", bytes));
  return tensor;
}

std::string read_header_bytes(Files& files, const std::string& path, int64_t file_bytes) {
  const auto refuse = [&](const std::string& found) {
    throw Error(Blame::kCaller, fmt::format("{}: found {}, expected safetensors", path, found));
  };
  if (file_bytes < static_cast<int64_t>(kLengthBytes)) refuse(fmt::format("{} bytes", file_bytes));
  const std::string front = files.read_range(path, 0, kLengthBytes);
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(front[i]);
  if (length > at(kMostHeaderBytes) || length + kLengthBytes > at(file_bytes))
    refuse(fmt::format("a header of {} bytes in {}", length, file_bytes));
  return front + files.read_range(path, kLengthBytes, static_cast<int64_t>(length));
}

}  // namespace

std::string print_header(SafetensorsHeader& header) {
  std::string text;
  for (const auto& [key, value] : header.metadata)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", json_string(key), json_string(value));
  if (!header.metadata.empty()) text = fmt::format("\"{}\":{{{}}}", kMetadata, text);
  int64_t end = 0;
  for (FileTensor& tensor : header.tensors) {
    tensor.begin = end;
    end += bytes_per_element(tensor.dtype);
    for (const int64_t size : tensor.shape) end = tensor.begin + (end - tensor.begin) * size;
    tensor.end = end;
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        text.empty() ? "" : ",",
                        json_string(tensor.name),
                        name_of(tensor.dtype),
                        integers(tensor.shape),
                        tensor.begin,
                        tensor.end);
  }
  text = "{" + text + "}";
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i)
    bytes += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  bytes += text;
  for (FileTensor& tensor : header.tensors) {
    tensor.begin += static_cast<int64_t>(bytes.size());
    tensor.end += static_cast<int64_t>(bytes.size());
  }
  return bytes;
}

SafetensorsHeader read_header(Files& files, const std::string& path, std::string* bytes) {
  const int64_t file_bytes = files.size(path);
  std::string text = read_header_bytes(files, path, file_bytes);
  const auto start = static_cast<int64_t>(text.size());
  const nlohmann::json json = parse_json(std::string_view(text).substr(kLengthBytes), path);
  const JsonPlace place{&json, path, ""};
  if (!json.is_object()) place.refuse("an object with a member for each tensor");
  SafetensorsHeader header;
  for (const auto& [name, value] : json.items()) {
    const JsonPlace here = place.member(name);
    if (name != kMetadata) {
      header.tensors.push_back(read_tensor(here, name));
      continue;
    }
    if (!value.is_object()) here.refuse("texts by name");
    for (const auto& [key, unused] : value.items())
      header.metadata.emplace(key, read_text(here.member(key)));
  }
  std::ranges::sort(header.tensors, {}, [](const FileTensor& tensor) {
    return std::tuple(tensor.begin, tensor.end, tensor.name);
  });
  int64_t end = 0;
  for (FileTensor& tensor : header.tensors) {
    const JsonPlace here = place.member(tensor.name).member("data_offsets");
    if (tensor.begin != end) here.refuse(fmt::format("{} first", end));
    if (tensor.end > file_bytes - start)
      here.refuse(fmt::format("no more than the {} bytes of tensors", file_bytes - start));
    end = tensor.end;
    tensor.begin += start;
    tensor.end += start;
  }
  if (end != file_bytes - start)
    throw Error(
        Blame::kCaller,
        fmt::format("{}: found {} bytes of tensors, expected {}", path, file_bytes - start, end));
  if (bytes != nullptr) *bytes = std::move(text);
  return header;
}

}  // namespace medley
