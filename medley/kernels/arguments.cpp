#include "medley/kernels/arguments.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <fmt/format.h>

#include <array>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

using Symbols = std::vector<int64_t>;

constexpr std::array<c10::ScalarType, 10> kTypes{c10::kDouble,
                                                 c10::kFloat,
                                                 c10::kHalf,
                                                 c10::kBFloat16,
                                                 c10::kLong,
                                                 c10::kInt,
                                                 c10::kShort,
                                                 c10::kChar,
                                                 c10::kByte,
                                                 c10::kBool};

c10::OperatorName operator_name(const std::string& name) {
  const size_t first = name.find('.');
  const size_t last = name.rfind('.');
  if (first == std::string::npos || first == last)
    throw Error(Blame::kCaller, fmt::format("expected namespace.op.overload: {}", name));
  const std::string overload = name.substr(last + 1);
  return {name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1),
          overload == "default" ? "" : overload};
}

// Accepts "channels_last", also as Python prints it: "torch.channels_last".
std::optional<int64_t> parse_enumerator(std::string_view text) {
  if (text.starts_with("torch.")) text.remove_prefix(6);
  if (text == "contiguous_format") return static_cast<int64_t>(c10::MemoryFormat::Contiguous);
  if (text == "preserve_format") return static_cast<int64_t>(c10::MemoryFormat::Preserve);
  if (text == "channels_last") return static_cast<int64_t>(c10::MemoryFormat::ChannelsLast);
  if (text == "channels_last_3d") return static_cast<int64_t>(c10::MemoryFormat::ChannelsLast3d);
  if (text == "strided") return static_cast<int64_t>(c10::Layout::Strided);
  return std::nullopt;
}

std::optional<int64_t> to_int(const Argument& argument, const Symbols& symbols) {
  if (auto* size = std::get_if<Size>(&argument)) return evaluate(*size, symbols);
  if (auto* dtype = std::get_if<DType>(&argument))
    return static_cast<int64_t>(to_scalar_type(*dtype));
  if (auto* text = std::get_if<std::string>(&argument)) return parse_enumerator(*text);
  return std::nullopt;
}

std::optional<double> to_double(const Argument& argument, const Symbols& symbols) {
  if (auto* number = std::get_if<double>(&argument)) return *number;
  if (auto* size = std::get_if<Size>(&argument))
    return static_cast<double>(evaluate(*size, symbols));
  return std::nullopt;
}

// Returns a number instead of a tensor, as Python allows. It takes part in type promotion as a
// number.
c10::IValue to_number(const Argument& argument, const Symbols& symbols) {
  if (auto* number = std::get_if<double>(&argument))
    return at::native::wrapped_scalar_tensor(*number);
  if (auto* flag = std::get_if<bool>(&argument)) return at::native::wrapped_scalar_tensor(*flag);
  if (auto* size = std::get_if<Size>(&argument))
    return at::native::wrapped_scalar_tensor(evaluate(*size, symbols));
  return {};
}

bool is_empty_list(const Argument& argument) {
  return std::visit(
      [](const auto& a) {
        if constexpr (requires { a.empty(); })
          return a.empty();
        else
          return false;
      },
      argument);
}

template <typename T>
std::vector<T> from_sizes(const std::vector<Size>& sizes, const Symbols& symbols) {
  std::vector<T> values;
  for (const Size& size : sizes) values.push_back(static_cast<T>(evaluate(size, symbols)));
  return values;
}

std::optional<c10::IValue> to_list(const Argument& argument,
                                   const c10::TypePtr& element,
                                   const Symbols& symbols) {
  const auto* sizes = std::get_if<std::vector<Size>>(&argument);
  switch (element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (sizes) return c10::IValue(from_sizes<int64_t>(*sizes, symbols));
      if (auto one = to_int(argument, symbols)) return c10::IValue(std::vector<int64_t>{*one});
      if (is_empty_list(argument)) return c10::IValue(std::vector<int64_t>{});
      return std::nullopt;
    case c10::TypeKind::FloatType:
      if (auto* list = std::get_if<std::vector<double>>(&argument)) return c10::IValue(*list);
      if (sizes) return c10::IValue(from_sizes<double>(*sizes, symbols));
      if (is_empty_list(argument)) return c10::IValue(std::vector<double>{});
      return std::nullopt;
    case c10::TypeKind::BoolType:
      if (auto* list = std::get_if<std::vector<bool>>(&argument)) {
        c10::List<bool> bools;
        for (bool each : *list) bools.push_back(each);
        return c10::IValue(bools);
      }
      if (is_empty_list(argument)) return c10::IValue(c10::List<bool>());
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<c10::IValue> convert(const Argument& argument,
                                   const c10::TypePtr& type,
                                   const Symbols& symbols,
                                   c10::Device device) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType: {
      const c10::TypePtr inner = type->castRaw<c10::OptionalType>()->getElementType();
      if (inner->kind() == c10::TypeKind::DeviceObjType) return c10::IValue(device);
      if (std::holds_alternative<NoneArgument>(argument)) return c10::IValue();
      return convert(argument, inner, symbols, device);
    }
    case c10::TypeKind::TensorType:
      return to_number(argument, symbols);
    case c10::TypeKind::ListType: {
      const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      const bool tensors = element->kind() == c10::TypeKind::TensorType ||
                           (element->kind() == c10::TypeKind::OptionalType &&
                            element->castRaw<c10::OptionalType>()->getElementType()->kind() ==
                                c10::TypeKind::TensorType);
      if (tensors) return c10::IValue();
      return to_list(argument, element, symbols);
    }
    case c10::TypeKind::DeviceObjType:
      return c10::IValue(device);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      if (auto number = to_int(argument, symbols)) return c10::IValue(*number);
      return std::nullopt;
    case c10::TypeKind::FloatType:
      if (auto number = to_double(argument, symbols)) return c10::IValue(*number);
      return std::nullopt;
    case c10::TypeKind::NumberType:
      if (auto* flag = std::get_if<bool>(&argument)) return c10::IValue(*flag);
      if (auto* number = std::get_if<double>(&argument)) return c10::IValue(*number);
      if (auto number = to_int(argument, symbols)) return c10::IValue(*number);
      return std::nullopt;
    case c10::TypeKind::BoolType:
      if (auto* flag = std::get_if<bool>(&argument)) return c10::IValue(*flag);
      return std::nullopt;
    case c10::TypeKind::StringType:
      if (auto* text = std::get_if<std::string>(&argument)) return c10::IValue(*text);
      return std::nullopt;
    default:
      if (std::holds_alternative<NoneArgument>(argument)) return c10::IValue();
      return std::nullopt;
  }
}

}  // namespace

c10::ScalarType to_scalar_type(DType dtype) {
  const auto index = at(dtype);
  MEDLEY_CHECK(index < kTypes.size());
  return kTypes[index];
}

DType to_dtype(c10::ScalarType type) {
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i] == type) return static_cast<DType>(i);
  throw Error(Blame::kCaller,
              fmt::format("no such element type in graphs: {}", c10::toString(type)));
}

c10::OperatorHandle find_operator(const std::string& name) {
  auto found = c10::Dispatcher::singleton().findSchema(operator_name(name));
  if (!found) throw Error(Blame::kCaller, fmt::format("this PyTorch has no operator {}", name));
  return *found;
}

c10::IValue to_ivalue(const Argument& argument,
                      const c10::Argument& schema,
                      const std::vector<int64_t>& symbols,
                      c10::Device device) {
  if (auto value = convert(argument, schema.type(), symbols, device)) return *value;
  throw Error(
      Blame::kCaller,
      fmt::format("argument {}: expected {}", schema.name(), schema.type()->annotation_str()));
}

std::vector<int64_t> shape_of(const TensorType& type, const std::vector<int64_t>& symbols) {
  return from_sizes<int64_t>(type.shape, symbols);
}

}  // namespace medley
