#include "lab/experiments/training.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapeformer::lab {

std::string to_text(const std::vector<std::string>& columns, const std::vector<Cell>& cells) {
  std::string text;
  for (size_t i = 0; i < cells.size(); ++i)
    text += (i ? ", " : "") + columns[i] + " " + to_text(cells[i]);
  return text;
}

Table train_all(const Laboratory& lab, const std::vector<std::string>& columns,
                const std::vector<Run>& runs, bool on_lines) {
  std::vector<Outcome> outcomes(runs.size());
  lab.for_each(runs.size(), [&](int64_t i) {
    const Trial& trial = runs[i].trial;
    outcomes[i] = on_lines ? lab.train_on_lines(trial) : lab.train_on_text(trial);
    outcomes[i].model.reset();
    lab.log(to_text(columns, runs[i].cells));
  });
  std::vector<std::string> all = columns;
  all.insert(all.end(), {"loss", "training", "stuck", "diverged"});
  Table table(all);
  for (size_t i = 0; i < runs.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    std::vector<Cell> row = runs[i].cells;
    row.insert(row.end(), {outcome.validation_loss, outcome.training_loss, double(outcome.stuck),
                           double(outcome.diverged)});
    table.add(row);
  }
  return table;
}

std::vector<double> losses(const Table& runs, const std::string& column) {
  std::vector<double> result = runs.numbers(column);
  for (double& loss : result)
    if (std::isnan(loss)) loss = std::numeric_limits<double>::infinity();
  return result;
}

Verdict both(Verdict a, Verdict b) {
  if (a == b) return a;
  const auto fails = [](Verdict v) {
    return v == Verdict::does_not_hold || v == Verdict::reversed;
  };
  return fails(a) || fails(b) ? Verdict::does_not_hold : Verdict::not_decidable;
}

Table with_log2(const Table& runs, const std::string& x) {
  std::vector<std::string> columns = runs.columns();
  columns.push_back("log2");
  Table result(columns);
  const auto values = runs.numbers(x);
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<Cell> row = runs.rows()[i];
    row.emplace_back(std::log2(values[i]));
    result.add(row);
  }
  return result;
}

}  // namespace tapeformer::lab
