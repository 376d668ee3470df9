// Decompositions and solvers: the last two dims are locked, the matrices before them map. Excludes
// ops whose factors depend on the storage order (_linalg_det, _linalg_slogdet).

#include "medley/ops/families.h"

namespace medley {

std::vector<Rule> linalg_rules() {
  return {
      {"aten._linalg_eigh.default", ".. m! n! -> .. v!, .. x! y!", ""},
      {"aten._linalg_svd.default", ".. m! n! -> .. x! y!, .. s!, .. u! v!", ""},
      {"aten._linalg_solve_ex.default", ".. m! n!, .. k! l! -> .. k l, .. m n, .. p!, ..", ""},
      {"aten.linalg_lu_solve.default", ".. m! n!, .. p!, .. k! l -> .. k l", "{2}"},
      {"aten.linalg_solve_triangular.default", ".. m! n!, .. k! l -> .. k l", "{1}"},
      {"aten.linalg_cholesky_ex.default", ".. m! n! -> .. m n, ..", ""},
      {"aten.linalg_inv_ex.default", ".. m! n! -> .. m n, ..", ""},
      {"aten.linalg_matrix_exp.default", ".. m! n! -> .. m n", ""},
      {"aten.linalg_qr.default", ".. m! n! -> .. x! y!, .. u! v!", ""},
      {"aten._cdist_forward.default", ".. m d!, .. n d -> .. m n", ""},
      {"aten._cdist_backward.default", ".. m n, .. m d, .. n d, .. m n -> .. m d", "{0}"},
      {"aten._euclidean_dist.default", ".. m d!, .. n d -> .. m n", ""},
  };
}

}  // namespace medley
