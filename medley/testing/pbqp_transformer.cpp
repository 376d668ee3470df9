#include "medley/testing/pbqp_transformer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <string>

#include "medley/base/at.h"

namespace medley {
namespace {

constexpr double kLatency = 30e6, kPicosecondsPerFlop = 0.1, kPicosecondsPerLocalByte = 2;
constexpr char kWhole = 'R', kPartial = 'P';

// On one axis: kWhole, kPartial, or a factor's letter with the part class that cuts it.
struct AxisPlacement {
  char factor = kWhole;
  int part = 0;
  auto operator<=>(const AxisPlacement&) const = default;
};
using Placement = std::vector<AxisPlacement>;  // [axis]

double size_of(char factor) {
  static const std::map<char, double> sizes{
      {'b', 96}, {'s', 512}, {'t', 512}, {'h', 12}, {'d', 768}, {'e', 64}, {'f', 3072}};
  return sizes.at(factor);
}

double elements(const std::string& factors) {
  double out = 1;
  for (const char factor : factors) out *= size_of(factor);
  return out;
}

// The common data of all ops of one kind.
struct Kind {
  std::vector<Placement> out;               // [choice]
  std::vector<std::vector<Placement>> ins;  // [input][choice]
  std::vector<int64_t> unary;
};

struct Value {
  int32_t variable = 0;
  int kind = 0;
  std::string factors;
};

class Builder {
 public:
  explicit Builder(const TransformerProblem& shape) : shape_(shape), random_(shape.seed) {}

  // Adds an op over the factors of its operands and result, with partial results only if `linear`.
  Value op(const std::string& out,
           std::vector<Value> ins,
           bool linear,
           const std::string& locked = "") {
    std::string name = out + (linear ? "+" : "-") + locked;
    std::vector<std::string> factors;
    for (const Value& in : ins) {
      name += "," + in.factors;
      factors.push_back(in.factors);
    }
    const int kind = kind_of(name, [&] { return kind_of_op(out, factors, linear, locked); });
    const Value value{add_variable(kind), kind, out};
    for (size_t i = 0; i < ins.size(); ++i) connect(ins[i], value, i);
    return value;
  }

  // Adds a copy for several readers: redistributed once.
  Value copy(const Value& value) {
    const int kind = kind_of("copy," + value.factors, [&] { return kind_of_copy(value.factors); });
    const Value out{add_variable(kind), kind, value.factors};
    connect(value, out, 0);
    return out;
  }

  // Adds a stored weight; update_weight() connects it to its gradient.
  Value weight(const std::string& factors) {
    const int kind = kind_of("weight," + factors, [&] { return kind_of_weight(factors); });
    return {add_variable(kind), kind, factors};
  }
  void update_weight(const Value& weight, const Value& gradient) { connect(gradient, weight, 0); }

  Pbqp take() { return std::move(problem_); }

 private:
  template <typename Make>
  int kind_of(const std::string& name, Make make) {
    const auto [found, missing] = kind_ids_.try_emplace(name, static_cast<int>(kinds_.size()));
    if (missing) kinds_.push_back(make());
    return found->second;
  }

  // Returns all choices of one placement per axis, with no factor cut twice.
  std::vector<Placement> placements(const std::string& factors, bool partial) const {
    std::vector<Placement> out{{}};
    for (const TransformerProblem::Axis& axis : shape_.axes) {
      std::vector<Placement> longer;
      for (const Placement& placement : out) {
        const auto add = [&](AxisPlacement next) {
          if (next.factor != kWhole && next.factor != kPartial &&
              std::ranges::any_of(placement,
                                  [&](const AxisPlacement& s) { return s.factor == next.factor; }))
            return;
          longer.push_back(placement);
          longer.back().push_back(next);
        };
        add({kWhole, 0});
        if (partial) add({kPartial, 0});
        for (const char factor : factors)
          for (int part = 0; part < axis.classes; ++part) add({factor, part});
      }
      out = std::move(longer);
    }
    return out;
  }

  // Returns one device's share of the work, or of the bytes, in a placement.
  double share(const Placement& placement) const {
    double out = 1;
    for (size_t a = 0; a < placement.size(); ++a)
      if (placement[a].factor != kWhole && placement[a].factor != kPartial)
        out *= (placement[a].part == 0 ? 1.0 : 1.4) / shape_.axes[a].devices;
    return out;
  }

  static Placement seen_by(const Placement& choice, const std::string& factors, bool is_output) {
    Placement out = choice;
    for (AxisPlacement& placement : out)
      if (placement.factor != kWhole && placement.factor != kPartial &&
          factors.find(placement.factor) == std::string::npos)
        placement = {is_output ? kPartial : kWhole, 0};
    return out;
  }

  Kind kind_of_op(const std::string& out,
                  const std::vector<std::string>& ins,
                  bool linear,
                  const std::string& locked) const {
    std::string all = out;
    for (const std::string& in : ins)
      for (const char factor : in)
        if (all.find(factor) == std::string::npos) all += factor;
    const double flops = 2 * elements(all);
    double bytes = 4 * elements(out);
    for (const std::string& in : ins) bytes += 4 * elements(in);
    std::string cut = all;
    std::erase_if(cut, [&](char f) { return locked.find(f) != std::string::npos; });
    Kind kind;
    kind.ins.resize(ins.size());
    for (const Placement& choice : placements(cut, linear && all == out)) {
      kind.out.push_back(seen_by(choice, out, true));
      for (size_t i = 0; i < ins.size(); ++i) kind.ins[i].push_back(seen_by(choice, ins[i], false));
      const double time = std::max(flops * kPicosecondsPerFlop, bytes * kPicosecondsPerLocalByte);
      kind.unary.push_back(std::llround(1e7 + time * share(choice)));
    }
    return kind;
  }

  Kind kind_of_copy(const std::string& factors) const {
    const std::vector<Placement> all = placements(factors, true);
    return {all, {all}, std::vector<int64_t>(all.size(), 0)};
  }

  Kind kind_of_weight(const std::string& factors) const {
    Kind kind;
    kind.out = placements(factors, false);
    kind.ins = {kind.out};
    for (const Placement& placement : kind.out)
      kind.unary.push_back(
          std::llround(28 * elements(factors) * kPicosecondsPerLocalByte * share(placement)));
    return kind;
  }

  double redistribution(const Placement& from, const Placement& to, double bytes) const {
    double out = 0;
    for (size_t a = 0; a < from.size(); ++a) {
      if (from[a] == to[a] || from[a].factor == kWhole) continue;
      const double n = shape_.axes[a].devices;
      Placement others = from;
      others[a] = {};
      const double time = bytes * share(others) * shape_.axes[a].picoseconds_per_byte;
      const bool cut = to[a].factor != kWhole && to[a].factor != kPartial;
      if (from[a].factor == kPartial)
        out += kLatency + time * (n - 1) / n * (cut ? 1 : 2);
      else if (to[a].factor == kWhole)
        out += kLatency + time * (n - 1) / n;
      else if (from[a].factor == to[a].factor)
        out += kLatency + time / n * 0.2;
      else if (cut)
        out += kLatency + time * (n - 1) / n / n;
    }
    return out;
  }

  void connect(const Value& from, const Value& to, size_t input) {
    const std::vector<Placement>& out = kinds_[at(from.kind)].out;
    const std::vector<Placement>& in = kinds_[at(to.kind)].ins[input];
    const bool forward = from.variable < to.variable;
    const auto [found, missing] =
        tables_.try_emplace({from.kind, to.kind, static_cast<int>(input), forward},
                            static_cast<int32_t>(problem_.tables.size()));
    if (missing) {
      PbqpTable table{static_cast<int32_t>(forward ? out.size() : in.size()),
                      static_cast<int32_t>(forward ? in.size() : out.size()),
                      {}};
      for (int32_t r = 0; r < table.rows; ++r)
        for (int32_t c = 0; c < table.columns; ++c)
          table.costs.push_back(std::llround(redistribution(
              out[at(forward ? r : c)], in[at(forward ? c : r)], 4 * elements(from.factors))));
      problem_.tables.push_back(std::move(table));
    }
    problem_.edges.push_back({std::min(from.variable, to.variable),
                              std::max(from.variable, to.variable),
                              found->second});
  }

  int32_t add_variable(int kind) {
    if (shape_.spread == 0) {
      const auto [found, missing] =
          unaries_.try_emplace(kind, static_cast<int32_t>(problem_.unaries.size()));
      if (missing) problem_.unaries.push_back(kinds_[at(kind)].unary);
      problem_.unary_of.push_back(found->second);
    } else {
      const double u = static_cast<double>(random_() >> 11) * 0x1p-53;
      const double factor = 1 + shape_.spread * (2 * u - 1);
      problem_.unary_of.push_back(static_cast<int32_t>(problem_.unaries.size()));
      problem_.unaries.push_back(kinds_[at(kind)].unary);
      for (int64_t& cost : problem_.unaries.back())
        cost = std::llround(static_cast<double>(cost) * factor);
    }
    return static_cast<int32_t>(problem_.unary_of.size()) - 1;
  }

  const TransformerProblem& shape_;
  std::mt19937_64 random_;
  std::vector<Kind> kinds_;
  std::map<std::string, int> kind_ids_;
  std::map<std::array<int, 4>, int32_t> tables_;
  std::map<int, int32_t> unaries_;
  Pbqp problem_;
};

// A matmul with a weight, and the inputs of its gradients.
struct Linear {
  Value input, weight, use;
};

struct Layer {
  Value input, normed, query, key, value, softmax, middle, normed_again, up;
  Linear q, k, v, out, first, second;
};

Value linear(
    Builder& b, Linear& layer, const Value& x, const std::string& weight, const std::string& out) {
  layer.input = x;
  layer.weight = b.weight(weight);
  layer.use = b.copy(layer.weight);
  return b.op(out, {x, layer.use}, true);
}

Value linear_backward(Builder& b, const Linear& layer, const Value& gradient) {
  b.update_weight(layer.weight, b.op(layer.weight.factors, {gradient, layer.input}, true));
  return b.op(layer.input.factors, {gradient, layer.use}, true);
}

Value forward(Builder& b, Layer& l, const Value& x) {
  l.input = b.copy(x);
  l.normed = b.copy(b.op("bsd", {l.input}, false, "d"));
  l.query = b.copy(linear(b, l.q, l.normed, "dhe", "bshe"));
  // Keys and values use another name for the sequence.
  const Value renamed = b.op("btd", {{l.normed.variable, l.normed.kind, "bsd"}}, false, "ts");
  l.key = b.copy(linear(b, l.k, renamed, "dhe", "bthe"));
  l.value = b.copy(linear(b, l.v, renamed, "dhe", "bthe"));
  const Value scores = b.op("bhst", {l.query, l.key}, true);
  l.softmax = b.copy(b.op("bhst", {scores}, false, "t"));
  const Value mixed = b.copy(b.op("bshe", {l.softmax, l.value}, true));
  const Value out = linear(b, l.out, mixed, "hed", "bsd");
  l.middle = b.copy(b.op("bsd", {l.input, out}, true));
  l.normed_again = b.copy(b.op("bsd", {l.middle}, false, "d"));
  l.up = b.copy(linear(b, l.first, l.normed_again, "df", "bsf"));
  const Value gelu = b.copy(b.op("bsf", {l.up}, false));
  const Value down = linear(b, l.second, gelu, "fd", "bsd");
  return b.op("bsd", {l.middle, down}, true);
}

Value backward(Builder& b, const Layer& l, const Value& gradient) {
  const Value g = b.copy(gradient);
  const Value down = linear_backward(b, l.second, g);
  const Value gelu = b.copy(b.op("bsf", {down, l.up}, false));
  const Value up = linear_backward(b, l.first, gelu);
  const Value norm = b.op("bsd", {up, l.middle}, false, "d");
  const Value middle = b.copy(b.op("bsd", {g, norm}, true));
  const Value out = b.copy(linear_backward(b, l.out, middle));
  const Value value = b.copy(b.op("bthe", {out, l.softmax}, true));
  const Value softmax = b.op("bhst", {out, l.value}, true);
  const Value scores = b.copy(b.op("bhst", {softmax, l.softmax}, false, "t"));
  const Value query = b.copy(b.op("bshe", {scores, l.key}, true));
  const Value key = b.copy(b.op("bthe", {scores, l.query}, true));
  const Value from_keys =
      b.op("btd", {linear_backward(b, l.k, key), linear_backward(b, l.v, value)}, true);
  const Value renamed = b.op("bsd", {from_keys}, false, "ts");
  const Value sum = b.op("bsd", {renamed, linear_backward(b, l.q, query)}, true);
  const Value norm_before = b.op("bsd", {sum, l.input}, false, "d");
  return b.op("bsd", {middle, norm_before}, true);
}

}  // namespace

Pbqp transformer_problem(const TransformerProblem& shape) {
  Builder builder(shape);
  std::vector<Layer> layers(at(shape.layers));
  Value x = builder.copy(builder.weight("bsd"));
  for (Layer& layer : layers) x = forward(builder, layer, x);
  Value gradient = builder.op("bsd", {x}, false, "d");
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer)
    gradient = backward(builder, *layer, gradient);
  return builder.take();
}

}  // namespace medley
