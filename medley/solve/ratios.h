#pragma once

// Computes uneven shares for fixed decisions: a linear program over the shares of every part on
// every device (HAP, https://arxiv.org/abs/2401.05965). Unlike HAP it takes a max over devices per
// communication-free segment instead of per op, and includes constants and memory.
//
//    minimise   sum over segments T_s + sum over exchanges M_c
//    T_s >= constant[s][i] + sum_k slope[s][k][i] * B[k][i]     for every device i
//    M_c >= constant[c] + sum_k slope[c][k] * B[k][i]           for every device i
//    sum_i B[k][i] = 1,  B >= 0                                 for every part k
//    bytes[i] + sum_k bytes_per_share[k][i] * B[k][i] <= capacity[i]
//
// Knows nothing of graphs or programs.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace medley {

struct RatioSegment {
  std::vector<double> constant = {};            // [device] seconds
  std::vector<std::vector<double>> slope = {};  // [part][device] seconds for all of the part
};

// A collective whose time grows with the largest share.
struct RatioExchange {
  double constant = 0;             // seconds
  std::vector<double> slope = {};  // [part] seconds if one device had all of it
};

struct RatioProblem {
  int devices = 0, parts = 0;
  std::vector<RatioSegment> segments = {};
  std::vector<RatioExchange> exchanges = {};
  // Memory in bytes; all empty: not limited.
  std::vector<double> bytes = {}, capacity = {};          // [device]
  std::vector<std::vector<double>> bytes_per_share = {};  // [part][device]
};

struct Ratios {
  std::vector<std::vector<double>> shares;  // [part][device], each part sums to 1
  double seconds = 0;                       // the objective
  // [device] Weights with which devices bound the objective from below: duals summed over segments,
  // scaled to sum 1.
  std::vector<double> weights;
};

// No division fits in memory. If the largest deficit is minimised, `device` is the first one with
// that deficit, `missing_bytes`. As many more bytes on every device would suffice.
struct RatioMisfit {
  int device = 0;
  double missing_bytes = 0;
};

// Solved in closed form (water filling) for one part, one type of segment and at most one type of
// exchange, else by an LP. Devices with equal coefficients get equal shares. Ties in the objective
// are resolved towards balanced parts. The result is deterministic. Throws Error(kUs) if sizes do
// not match or a number is negative or not finite.
std::variant<Ratios, RatioMisfit> best_ratios(const RatioProblem& problem);

}  // namespace medley
