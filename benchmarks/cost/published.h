#pragma once

// Published times on six types of GPU (tests/data/published_op_times), and the work of the measured
// blocks as our own ops.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "medley/base/error.h"
#include "medley/cost/fit_rates.h"

namespace medley {

struct PublishedTime {
  std::string device, model;
  TimedBlock block;
};

struct LayerSizes {
  double hidden, heads, feed_forward;
};

inline const std::map<std::string, LayerSizes>& published_models() {
  static const std::map<std::string, LayerSizes> kModels{{"OPT-350", {1024, 16, 4096}},
                                                         {"GPT-Neo-2.7", {2560, 32, 10240}},
                                                         {"OPT-30", {7168, 56, 28672}}};
  return kModels;
}

// Returns a layer block's work, kernel by kernel, in f16 with a byte per element of a dropout's
// mask. X is a [rows, hidden] activation, S the attention scores, F the activation within the MLP.
//
// - qkv: a matmul; q, k and v are made contiguous.
// - score, context: one batched matmul; backward two.
// - softmax: causal, reads half of S and writes S; backward reads two halves.
// - dropout: reads and writes S, and its mask.
// - gelu: with the bias; backward reads F twice and writes it, then sums for the bias.
// - post-dropout: adds the bias, drops, adds the residual; backward drops, then sums.
// - layernorm: reads X twice; backward reads X and the gradient twice, then once more for the
//   parameters, and adds the residual's gradient.
//
// A backward matmul is one matmul: these times exclude gradients of weights.
inline std::vector<OpWork> published_work(
    const std::string& block, bool backward, const LayerSizes& model, double batch, double degree) {
  constexpr double kSequence = 2048;
  constexpr double kBytes = 2;
  const double rows = batch * kSequence;
  const double x = kBytes * rows * model.hidden;
  const double f = kBytes * rows * model.feed_forward / degree;
  const double score_elements = batch * model.heads / degree * kSequence * kSequence;
  const double s = kBytes * score_elements;
  const auto memory = [](double bytes) {
    return OpWork{WorkClass::kMemory, {0, bytes}, DType::kF16};
  };
  const auto product = [&](double k, double n) {
    return OpWork{WorkClass::kMatmul,
                  {2 * rows * k * n, kBytes * (rows * k + k * n + rows * n)},
                  DType::kF16};
  };
  const OpWork batched{WorkClass::kMatmul,
                       {2 * score_elements * model.hidden / model.heads, s + 2 * x / degree},
                       DType::kF16};
  if (block == "enc-attention-qkv") {
    const OpWork copy = memory(2 * x / degree);
    return {product(model.hidden, 3 * model.hidden / degree), copy, copy, copy};
  }
  if (block == "enc-attention-score" || block == "enc-attention-context")
    return std::vector<OpWork>(backward ? 2 : 1, batched);
  if (block == "enc-attention-softmax") return {memory((backward ? 2 : 1.5) * s)};
  if (block == "enc-attention-dropout") return {memory(2.5 * s)};
  if (block == "enc-attention-dense") return {product(model.hidden / degree, model.hidden)};
  if (block == "enc-MLP-GEMM-1") return {product(model.hidden, model.feed_forward / degree)};
  if (block == "enc-MLP-GEMM-2") return {product(model.feed_forward / degree, model.hidden)};
  if (block == "enc-MLP-gelu")
    return backward ? std::vector{memory(3 * f), memory(f)} : std::vector{memory(2 * f)};
  if (block == "enc-post-attention-dropout" || block == "enc-post-MLP-dropout")
    return backward ? std::vector{memory(2.5 * x), memory(x)}
                    : std::vector{memory(2 * x), memory(2.5 * x), memory(3 * x)};
  if (block == "enc-1st-layernorm" || block == "enc-2nd-layernorm")
    return backward ? std::vector{memory(5 * x), memory(2 * x), memory(3 * x)}
                    : std::vector{memory(3 * x)};
  throw Error(Blame::kCaller, fmt::format("found block {}, expected one of a layer", block));
}

inline std::vector<std::string> split_at_commas(const std::string& line) {
  std::vector<std::string> cells(1);
  for (char c : line)
    if (c == ',')
      cells.emplace_back();
    else
      cells.back() += c;
  return cells;
}

inline std::vector<PublishedTime> read_published_times(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) throw Error(Blame::kCaller, fmt::format("{}: cannot read", file));
  const std::vector<std::string> header = split_at_commas(line);
  std::vector<PublishedTime> all;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = split_at_commas(line);
    if (cells.size() != header.size())
      throw Error(Blame::kCaller, fmt::format("{}: found {}", file, line));
    for (size_t i = 4; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      const size_t t = header[i].find('t');  // "b4t2"
      const double batch = std::stod(header[i].substr(1, t - 1));
      const double degree = std::stod(header[i].substr(t + 1));
      all.push_back(
          {cells[0],
           cells[1],
           {published_work(
                cells[2], cells[3] == "backward", published_models().at(cells[1]), batch, degree),
            {std::stod(cells[i]) * 1e-6}}});
    }
  }
  return all;
}

}  // namespace medley
