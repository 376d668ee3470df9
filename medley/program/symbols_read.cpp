#include "medley/program/symbols_read.h"

#include <algorithm>
#include <map>
#include <utility>

#include "medley/base/at.h"

namespace medley {
namespace {

class Reader {
 public:
  explicit Reader(const LoweredStage& stage) : stage_(stage) {}

  void operator()(const Segment& segment) {
    for (OpId id : segment.ops) {
      const Op& op = stage_.graph.ops.at(at(id));
      add_types(operands(op));
      add_types(op.results);
      for (const Argument& argument : op.arguments) {
        if (const auto* size = std::get_if<Size>(&argument)) add(*size);
        if (const auto* sizes = std::get_if<std::vector<Size>>(&argument)) add(*sizes);
      }
    }
  }
  void operator()(const Post& post) { add(post.communication); }
  void operator()(const Wait& wait) { add(wait.communication); }

  std::vector<Symbol> symbols() {
    std::ranges::sort(symbols_);
    symbols_.erase(std::unique(symbols_.begin(), symbols_.end()), symbols_.end());
    return std::move(symbols_);
  }

 private:
  void add(const Size& size) {
    symbols_.insert(symbols_.end(), size.symbols.begin(), size.symbols.end());
  }
  void add(const std::vector<Size>& sizes) {
    for (const Size& size : sizes) add(size);
  }
  void add_types(const std::vector<ValueId>& values) {
    for (ValueId value : values)
      if (value != kNone) add(type_of(stage_.graph, value).shape);
  }
  void add(int id) {
    const Communication& communication = stage_.communications.at(at(id));
    add_types(communication.inputs);
    add_types(communication.outputs);
    add(communication.send);
    add(communication.receive);
  }

  const LoweredStage& stage_;
  std::vector<Symbol> symbols_;
};

}  // namespace

std::vector<Symbol> symbols_read(const LoweredStage& stage, std::span<const Step> steps) {
  Reader reader(stage);
  for (const Step& step : steps) std::visit(reader, step);
  return reader.symbols();
}

std::vector<int> first_identical(const LoweredStage& stage) {
  Reader reader(stage);
  for (size_t i = 0; i < stage.communications.size(); ++i) reader(Post{static_cast<int>(i), {}});
  const std::vector<Symbol> symbols = reader.symbols();
  std::map<std::vector<int64_t>, int> known;  // by their values on all devices
  std::vector<int> first;
  for (const auto& tables : stage.tables) {
    std::vector<int64_t> lengths;
    for (const std::vector<int64_t>& table : tables) {
      const std::vector<int64_t> own = values_of(symbols, table);
      lengths.insert(lengths.end(), own.begin(), own.end());
    }
    first.push_back(
        known.try_emplace(std::move(lengths), static_cast<int>(first.size())).first->second);
  }
  return first;
}

std::vector<int64_t> values_of(const std::vector<Symbol>& symbols,
                               const std::vector<int64_t>& table) {
  std::vector<int64_t> values;
  for (Symbol symbol : symbols) values.push_back(table.at(at(symbol)));
  return values;
}

}  // namespace medley
