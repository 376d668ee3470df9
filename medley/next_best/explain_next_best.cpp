#include "medley/next_best/explain_next_best.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "medley/base/units.h"
#include "medley/cli/explain_groups.h"
#include "medley/cli/explain_words.h"
#include "medley/cli/table.h"
#include "medley/next_best/next_best.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

// Limits of questions per type, the first ones in graph order.
constexpr size_t kMostLayers = 12;
constexpr size_t kMostOthers = 6;

enum class Kind : uint8_t { kLayer, kOp, kParameter };

// Names with one decision, and the choices that are equal to it.
struct Question {
  Kind kind = Kind::kLayer;
  std::string about;  // "h.*.mlp"
  std::string now;    // dividing label, or the text of a plan
  std::vector<std::string> names;

  std::string way(const std::string& choice) const {
    return kind == Kind::kLayer ? divided_by(choice) : choice;
  }
};

// Adds names to the question with `about` and `now`, or appends a new one.
void ask(std::vector<Question>& questions,
         Kind kind,
         const std::string& about,
         const std::string& now,
         const std::string& name) {
  const auto same = std::find_if(questions.begin(), questions.end(), [&](const Question& question) {
    return question.kind == kind && question.about == about && question.now == now;
  });
  if (same != questions.end())
    same->names.push_back(name);
  else
    questions.push_back({kind, about, now, {name}});
}

// A layer is its matmuls, attention and convolutions; the other ops follow them.
bool is_heavy(const Op& op) {
  const WorkClass work = work_class(op.name);
  return work != WorkClass::kMemory && work != WorkClass::kView;
}

// Returns the first questions of each type in graph order, with those about one layer adjacent.
std::vector<Question> first_of(std::vector<Question> questions) {
  std::map<std::pair<Kind, std::string>, size_t> first;
  for (size_t i = 0; i < questions.size(); ++i)
    first.try_emplace({questions[i].kind, questions[i].about}, i);
  const auto rank = [&](const Question& question) {
    return std::pair(question.kind, first.at({question.kind, question.about}));
  };
  std::stable_sort(questions.begin(), questions.end(), [&](const Question& a, const Question& b) {
    return rank(a) < rank(b);
  });
  std::map<Kind, size_t> count;
  std::vector<Question> all;
  for (Question& question : questions) {
    if (all.empty() || rank(all.back()) != rank(question)) ++count[question.kind];
    if (count[question.kind] <= (question.kind == Kind::kLayer ? kMostLayers : kMostOthers))
      all.push_back(std::move(question));
  }
  return all;
}

std::vector<Question> questions_about(const Completed& completed) {
  std::vector<Question> questions;
  const Graph& graph = completed.prepared->graph;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const std::string& name = completed.prepared->names[i];
    const std::string text = choices_text(completed, static_cast<OpId>(i));
    const std::string by = divided_by(text);
    if (is_heavy(graph.ops[i])) ask(questions, Kind::kLayer, module_pattern(name), by, name);
    if (!is_undivided(by) && by != kRows)
      ask(questions, Kind::kOp, block_pattern(name), text, name);
  }
  for (const Said& parameter : parameters_said(completed))
    if (parameter.text != "R")
      ask(questions,
          Kind::kParameter,
          block_pattern(parameter.name),
          parameter.text,
          parameter.name);
  return first_of(std::move(questions));
}

// Returns the choice of most names.
std::string instead(const Question& question, const Alternative& alternative) {
  std::map<std::string, int> votes;
  for (const auto& [name, choice] : alternative.choices) ++votes[question.way(choice)];
  return std::max_element(votes.begin(),
                          votes.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

std::string in_words(const Plan& plan, Kind kind, const std::string& way) {
  if (kind == Kind::kOp) return words(plan, parse_choice_text(way));
  if (kind == Kind::kParameter) return words(plan, parse_placement_text(way));
  return is_undivided(way) ? way : "by " + way;
}

const char* kind_text(Kind kind) {
  switch (kind) {
    case Kind::kLayer:
      return "layer";
    case Kind::kOp:
      return "op";
    case Kind::kParameter:
      break;
  }
  return "parameter";
}

struct Answer {
  Question question;
  std::optional<Alternative> alternative;
};

// The answer for a layer with several divisions is its cheapest change.
std::vector<Answer> answers_to(const std::vector<Question>& questions,
                               const NextBest& next_best,
                               Progress& progress) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    progress.at("looking for the next best", i + 1, questions.size());
    if (std::none_of(question.names.begin(), question.names.end(), [&](const std::string& name) {
          return next_best.problem().variable_of(name) >= 0;
        }))
      continue;  // it follows from other decisions
    std::optional<Alternative> found = next_best.without(
        question.names,
        [&](const std::string& choice) { return question.way(choice) == question.now; });
    Answer* same = answers.empty() ? nullptr : &answers.back();
    if (!same || question.kind != Kind::kLayer || same->question.about != question.about)
      answers.push_back({question, std::move(found)});
    else if (found && (!same->alternative || found->loss < same->alternative->loss))
      *same = {question, std::move(found)};
  }
  return answers;
}

}  // namespace

Json next_best_json(const Request& request, const Plan& plan, Progress& progress) {
  Json rows = Json::array();
  if (!NextBest::knows(plan)) return rows;
  const Completed completed = complete_stages(*request.cache.analysis, plan)[0];
  const std::vector<Question> questions = questions_about(completed);
  if (questions.empty()) return rows;
  const NextBest next_best(request, plan);
  const Nanoseconds now = next_best.simulated(plan).step;
  const std::vector<Answer> answers = answers_to(questions, next_best, progress);
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto& [question, alternative] = answers[i];
    progress.at("simulating the next best", i + 1, answers.size());
    Json row = {{"about", question.about},
                {"kind", kind_text(question.kind)},
                {"count", question.names.size()},
                {"now", in_words(plan, question.kind, question.now)}};
    if (alternative) {
      const Simulated simulated = next_best.simulated(alternative->plan);
      row["next_best"] = in_words(plan, question.kind, instead(question, *alternative));
      row["step_seconds"] = to_seconds(simulated.step).value;
      row["longer_by_seconds"] = to_seconds(simulated.step - now).value;
      row["longer_by_share"] = simulated.step / now - 1;
      row["fits"] = simulated.fits;
      row["model_loss_seconds"] = to_seconds(alternative->loss).value;
      row["proved"] = alternative->proved;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string next_best_text(const Json& rows) {
  if (rows.empty()) return "";
  Table table("layer|now|next best|step|slowdown");
  for (const Json& row : rows) {
    std::vector<std::string> cells{row["about"].get<std::string>(), row["now"].get<std::string>()};
    if (!row.contains("next_best")) {
      cells.emplace_back("none");
    } else {
      cells.push_back(row["next_best"].get<std::string>());
      cells.push_back(to_string(Seconds{row["step_seconds"].get<double>()}));
      cells.push_back(row["fits"].get<bool>() ? percent(row["longer_by_share"].get<double>())
                                              : "does not fit");
    }
    table.add(std::move(cells));
  }
  return table.text() +
         "step, slowdown: with the next-best sharding of that layer and all else planned again\n";
}

}  // namespace medley
