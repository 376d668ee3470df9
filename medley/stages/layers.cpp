#include "medley/stages/layers.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/ops/rule.h"
#include "medley/stages/layers_blocks.h"
#include "medley/stages/layers_tokens.h"

namespace medley {
namespace {

class LayerFinder {
 public:
  LayerFinder(const Graph& graph, const Positions& positions, const LayerOptions& options)
      : graph_(graph),
        positions_(positions),
        options_(options),
        symbols_(graph.symbols.size(), options.rows),
        size_(static_cast<int32_t>(positions.sequence.size())) {}

  Layers run() {
    tokens_ = op_tokens(graph_, positions_);
    sequence_.token.resize(at(size_));
    sequence_.sources.resize(at(size_));
    sequence_.flops.assign(at(size_), 0);
    sequence_.bytes.assign(at(size_), 0);
    backward_flops_.assign(at(size_), 0);
    for (int32_t p = 0; p < size_; ++p) describe(p);
    find_crossings();
    result_.blocks = find_blocks(sequence_);
    cut();
    add_flops();
    add_crossings();
    add_parameters();
    add_structures();
    for (Layer& layer : result_.layers) layer.module = module_of(layer);
    return std::move(result_);
  }

 private:
  // A value that crosses every cut in (from, to].
  struct Crossing {
    ValueId value;
    int32_t from, to;
    bool up;
  };

  double flops(const Op& op) const {
    std::vector<TensorType> from, to;
    for (ValueId value : operands(op))
      from.push_back(value == kNone ? TensorType{} : type_of(graph_, value));
    for (ValueId value : op.results)
      to.push_back(value == kNone ? TensorType{} : type_of(graph_, value));
    return work(op, from, to, symbols_).flops;
  }

  int32_t position_of(ValueId root) const {
    return positions_.position[at(graph_.values[at(root)].producer)];
  }

  void describe(int32_t p) {
    const OpId id = positions_.sequence[at(p)];
    sequence_.token[at(p)] = tokens_.token[at(id)];
    for (ValueId root : tokens_.sources[at(id)])
      sequence_.sources[at(p)].push_back({position_of(root), graph_.values[at(root)].result});
    sequence_.flops[at(p)] = flops(graph_.ops[at(id)]);
  }

  void find_crossings() {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const auto value = static_cast<ValueId>(v);
      const int32_t last = positions_.last_read[v];
      if (last != kNone && last > position_of(value))
        crossings_.push_back({value, position_of(value), last, true});
    }
    std::map<ValueId, int32_t> lowest;  // reader of gradients sent down
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (op.phase != Phase::kBackward || positions_.position[i] == kNone) continue;
      backward_flops_[at(positions_.position[i])] += flops(op);
      for (ValueId root : tokens_.sources[i]) {
        const auto [found, fresh] = lowest.try_emplace(root, positions_.position[i]);
        if (!fresh) found->second = std::min(found->second, positions_.position[i]);
      }
    }
    for (const auto& [value, reader] : lowest)
      if (reader < position_of(value))
        crossings_.push_back({value, reader, position_of(value), false});
    for (const Crossing& crossing : crossings_) {
      if (!crossing.up) continue;
      const int64_t bytes = num_bytes(type_of(graph_, crossing.value), symbols_);
      sequence_.bytes[at(crossing.from + 1)] += bytes;
      if (crossing.to + 1 < size_) sequence_.bytes[at(crossing.to + 1)] -= bytes;
    }
    for (int32_t p = 1; p < size_; ++p) sequence_.bytes[at(p)] += sequence_.bytes[at(p - 1)];
  }

  double sum(const std::vector<double>& values, int32_t begin, int32_t end) const {
    double total = 0;
    for (int32_t p = begin; p < end; ++p) total += values[at(p)];
    return total;
  }

  void add_layers(int32_t begin, const std::vector<int32_t>& cuts, int32_t end, int32_t block) {
    for (size_t i = 0; i <= cuts.size(); ++i) {
      Layer layer;
      layer.begin = i == 0 ? begin : cuts[i - 1];
      layer.end = i == cuts.size() ? end : cuts[i];
      layer.block = block;
      result_.layers.push_back(std::move(layer));
    }
  }

  // Returns the target flops of a layer outside of blocks.
  double usual_flops() const {
    double in_blocks = 0;
    int32_t layers = 0;
    for (const RepeatedBlock& block : result_.blocks) {
      in_blocks += sum(sequence_.flops, block.begin, block.begin + block.length) * block.count;
      layers += block.count * options_.per_block;
    }
    return layers > 0 ? in_blocks / layers : sum(sequence_.flops, 0, size_) / options_.without;
  }

  // Returns the cuts of `count` layers, each divided into parts.
  std::vector<int32_t> cuts_of(int32_t begin, int32_t end, int count) const {
    const std::vector<int32_t> between = divide(sequence_, begin, end, count);
    if (options_.parts == 1) return between;
    std::vector<int32_t> cuts;
    int32_t from = begin;
    for (size_t i = 0; i <= between.size(); ++i) {
      const int32_t to = i < between.size() ? between[i] : end;
      for (const int32_t cut : divide(sequence_, from, to, options_.parts)) cuts.push_back(cut);
      if (to < end) cuts.push_back(to);
      from = to;
    }
    return cuts;
  }

  void cut() {
    const double usual = usual_flops();
    const auto rest = [&](int32_t begin, int32_t end) {
      if (begin == end) return;
      const double share = usual > 0 ? sum(sequence_.flops, begin, end) / usual : 0;
      const int count = std::max(1, static_cast<int>(std::lround(share)));
      add_layers(begin, cuts_of(begin, end, count), end, kNone);
    };
    int32_t done = 0;
    for (size_t b = 0; b < result_.blocks.size(); ++b) {
      const RepeatedBlock& block = result_.blocks[b];
      rest(done, block.begin);
      // All blocks have the cuts of the second one, which follows an equal block.
      const int32_t second = block.begin + block.length;
      const std::vector<int32_t> cuts = cuts_of(second, second + block.length, options_.per_block);
      for (int32_t i = 0; i < block.count; ++i) {
        const int32_t begin = block.begin + i * block.length;
        std::vector<int32_t> own = cuts;
        for (int32_t& c : own) c += begin - second;
        add_layers(begin, own, begin + block.length, static_cast<int32_t>(b));
      }
      done = block.begin + block.count * block.length;
    }
    rest(done, size_);
  }

  void add_flops() {
    layer_of_.assign(at(size_), 0);
    for (size_t l = 0; l < result_.layers.size(); ++l) {
      Layer& layer = result_.layers[l];
      layer.flops = sum(sequence_.flops, layer.begin, layer.end);
      layer.backward_flops = sum(backward_flops_, layer.begin, layer.end);
      for (int32_t p = layer.begin; p < layer.end; ++p) layer_of_[at(p)] = l;
    }
  }

  // Cut l is the one after layer l.
  void add_crossings() {
    std::sort(crossings_.begin(), crossings_.end(), [](const Crossing& a, const Crossing& b) {
      return a.value < b.value;
    });
    for (const Crossing& crossing : crossings_)
      for (size_t l = layer_of_[at(crossing.from)]; l < layer_of_[at(crossing.to)]; ++l)
        (crossing.up ? result_.layers[l].up : result_.layers[l].down).push_back(crossing.value);
  }

  void add_parameters() {
    for (const Input& input : graph_.inputs) {
      const auto uses = positions_.uses.find(input.value);
      if (uses == positions_.uses.end()) continue;
      for (int32_t position : uses->second) {
        std::vector<ValueId>& parameters = result_.layers[layer_of_[at(position)]].parameters;
        if (parameters.empty() || parameters.back() != input.value)
          parameters.push_back(input.value);
      }
    }
  }

  void add_structures() {
    std::vector<std::vector<OpId>> ops(result_.layers.size());
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      if (positions_.position[i] != kNone)
        ops[layer_of_[at(positions_.position[i])]].push_back(static_cast<OpId>(i));
    std::map<Token, int32_t> ids;
    for (size_t l = 0; l < ops.size(); ++l) {
      const auto id = static_cast<int32_t>(ids.size());
      result_.layers[l].structure = ids.try_emplace(token_of(ops[l]), id).first->second;
    }
  }

  // Returns a token of a layer's ops and their sources. Values of other layers count in the order
  // of their first read.
  Token token_of(const std::vector<OpId>& ops) const {
    std::map<ValueId, Token> number;
    Token token = ops.size(), next = 0;
    for (OpId id : ops) {
      token = mix(token, tokens_.token[at(id)]);
      for (ValueId root : tokens_.sources[at(id)])
        token = mix(token, number.try_emplace(root, next++).first->second);
      for (ValueId value : graph_.ops[at(id)].results)
        if (value != kNone) number.try_emplace(value, next++);
    }
    return token;
  }

  // Returns the common path of all ops with flops, or of all ops if none has flops.
  std::string module_of(const Layer& layer) const {
    std::string common;
    for (const bool all : {false, true}) {
      bool first = true;
      for (int32_t p = layer.begin; p < layer.end; ++p) {
        if (!all && sequence_.flops[at(p)] == 0) continue;
        const std::string& module = graph_.ops[at(positions_.sequence[at(p)])].module;
        common = first ? module : shared_path(common, module);
        first = false;
      }
      if (!first) break;
    }
    return common;
  }

  static std::string shared_path(const std::string& a, const std::string& b) {
    size_t end = 0;
    for (size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
      const bool a_ends = i == a.size() || a[i] == '.', b_ends = i == b.size() || b[i] == '.';
      if (a_ends && b_ends) end = i;
      if (i < a.size() && i < b.size() && a[i] != b[i]) break;
    }
    return a.substr(0, end);
  }

  const Graph& graph_;
  const Positions& positions_;
  const LayerOptions& options_;
  const std::vector<int64_t> symbols_;
  const int32_t size_;
  OpTokens tokens_;
  Sequence sequence_;
  std::vector<double> backward_flops_;  // [position]
  std::vector<Crossing> crossings_;
  std::vector<size_t> layer_of_;  // [position]
  Layers result_;
};

}  // namespace

Layers find_layers(const Graph& graph, const Positions& positions, const LayerOptions& options) {
  MEDLEY_CHECK(options.per_block > 0 && options.parts > 0 && options.without > 0 &&
               options.rows > 0);
  return LayerFinder(graph, positions, options).run();
}

std::vector<int32_t> cuts_at(const Layers& layers, const std::vector<int>& first_layers) {
  std::vector<int32_t> cuts;
  for (int layer : first_layers) cuts.push_back(layers.layers.at(at(layer)).begin);
  return cuts;
}

}  // namespace medley
