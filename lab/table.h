// A small table of runs: what an experiment measured, one row per run, as it goes into a CSV file.
// Verdicts are computed from such a table alone, so the file is all that is needed to check one.
#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace tapeformer::lab {

using Cell = std::variant<std::string, double>;

class Table {
 public:
  Table() = default;
  explicit Table(std::vector<std::string> columns);

  /// Throws unless there is one cell for each column.
  void add(std::vector<Cell> row);
  /// The rows whose cell in `column` is `value`. Throws for an unknown column, and where there is
  /// no such row: a table that lost runs is no ground for a verdict.
  Table where(const std::string& column, const Cell& value) const;
  /// Numbers of one column, in the order of the rows. Throws where a cell is text.
  std::vector<double> numbers(const std::string& column) const;
  /// The only number of the only row. Throws when there are none or several.
  double number(const std::string& column) const;
  /// The different cells of a column, in the order of their first appearance.
  std::vector<Cell> distinct(const std::string& column) const;

  const std::vector<std::string>& columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }
  bool empty() const { return rows_.empty(); }

  /// CSV (RFC 4180) with a header line; numbers read back to the same bits.
  std::string csv() const;
  /// The reverse: a cell that is a number as a whole is one. Throws for a text that is no table.
  static Table from_csv(const std::string& text);

 private:
  size_t index(const std::string& column) const;
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// The table in a CSV file. Errors name the file.
Table read_table(const std::filesystem::path& path);

/// As text: "0.5", "batchnorm".
std::string to_text(const Cell& cell);

}  // namespace tapeformer::lab
