#include "medley/profile/sized_op.h"

#include <charconv>

#include "medley/base/at.h"
#include "medley/graph/replace_bf16.h"

namespace medley {
namespace {

constexpr std::string_view kClassNames[] = {"matmul", "attention", "convolution", "memory", "view"};

// FNV-1a (https://datatracker.ietf.org/doc/draft-eastlake-fnv/).
class Hash {
 public:
  void append(std::string_view text) {
    for (char c : text) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

// Writes a key to a sink of text: a string, or a hash of it.
template <typename Sink>
class KeyWriter {
 public:
  KeyWriter(Sink& sink, const Graph& graph, const std::vector<int64_t>& symbols, DType bf16_as)
      : sink_(sink), graph_(graph), symbols_(symbols), bf16_as_(bf16_as) {}

  void write(const Op& op) {
    const Rule* rule = find_rule(op.name);
    names_sizes_ = !rule || (rule->localize && rule->work != WorkClass::kConvolution);
    sink_.append(op.name);
    sink_.append("(");
    for (size_t i = 0; i < op.arguments.size(); ++i) {
      if (i > 0) sink_.append(", ");
      std::visit([&](const auto& argument) { write(argument); }, op.arguments[i]);
    }
    sink_.append(") -> ");
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (i > 0) sink_.append(", ");
      write(ValueArgument{op.results[i]});
    }
  }

 private:
  template <typename Number>
  void number(Number value) {
    char text[32];
    const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
    sink_.append(std::string_view(text, at(end - text)));
  }

  template <typename T>
  void list(const std::vector<T>& values) {
    sink_.append("[");
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) sink_.append(",");
      write(static_cast<T>(values[i]));
    }
    sink_.append("]");
  }

  void write(const NoneArgument&) { sink_.append("none"); }
  void write(const ValueArgument& argument) {
    if (argument.value == kNone) return write(NoneArgument{});
    const TensorType& type = type_of(graph_, argument.value);
    write(type.dtype);
    sink_.append("[");
    for (size_t d = 0; d < type.shape.size(); ++d) {
      if (d > 0) sink_.append(",");
      number(evaluate(type.shape[d], symbols_));
    }
    sink_.append("]");
  }
  void write(bool value) { sink_.append(value ? "true" : "false"); }
  void write(double value) { number(value); }
  void write(const Size& size) {
    if (names_sizes_)
      sink_.append("_");
    else
      number(evaluate(size, symbols_));
  }
  void write(DType dtype) { sink_.append(to_string(replace_bf16(dtype, bf16_as_))); }
  void write(const std::string& text) { sink_.append(text); }
  void write(const std::vector<Size>& sizes) {
    if (names_sizes_)
      sink_.append("_");
    else
      list(sizes);
  }
  template <typename T>
  void write(const std::vector<T>& values) {
    list(values);
  }

  Sink& sink_;
  const Graph& graph_;
  const std::vector<int64_t>& symbols_;
  DType bf16_as_;
  bool names_sizes_ = false;
};

}  // namespace

OpWork op_work(const Graph& graph,
               const Op& op,
               const std::vector<int64_t>& symbols,
               DType bf16_as) {
  OpWork result;
  result.work_class = work_class(op.name);
  if (result.work_class == WorkClass::kView) return result;
  const auto types = [&](const std::vector<ValueId>& values) {
    std::vector<TensorType> list;
    list.reserve(values.size());
    for (ValueId value : values)
      list.push_back(value == kNone ? TensorType{} : replace_bf16(type_of(graph, value), bf16_as));
    return list;
  };
  const std::vector<TensorType> ins = types(operands(op)), outs = types(op.results);
  result.work = work(op, ins, outs, symbols);
  for (const auto* list : {&outs, &ins})
    for (const TensorType& type : *list)
      if (is_floating(type.dtype)) {
        result.dtype = type.dtype;
        return result;
      }
  return result;
}

SizedOp sized_op(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols) {
  const OpWork work = op_work(graph, op, symbols);
  SizedOp sized{{}, op.name, work.work_class, work.dtype, work.work};
  sized.key.reserve(160);
  KeyWriter(sized.key, graph, symbols, DType::kBF16).write(op);
  return sized;
}

uint64_t key_hash(const Graph& graph,
                  const Op& op,
                  const std::vector<int64_t>& symbols,
                  DType bf16_as) {
  Hash hash;
  KeyWriter(hash, graph, symbols, bf16_as).write(op);
  return hash.value();
}

uint64_t key_hash(std::string_view key) {
  Hash hash;
  hash.append(key);
  return hash.value();
}

std::string_view class_name(WorkClass work_class) { return kClassNames[at(work_class)]; }

}  // namespace medley
