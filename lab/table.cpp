#include "lab/table.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "train/files.h"
#include "train/format.h"

namespace tapeformer::lab {

namespace {

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"') result += '"';
    result += c;
  }
  return result + '"';
}

Cell parse(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (!text.empty() && error == std::errc{} && stop == end) return number;
  return text;
}

// Reads records of RFC 4180: fields by commas, quotes doubled inside quotes.
std::vector<std::vector<std::string>> records(const std::string& text) {
  std::vector<std::vector<std::string>> result;
  std::vector<std::string> record;
  std::string field;
  bool in_quotes = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_quotes) {
      const bool doubled = c == '"' && i + 1 < text.size() && text[i + 1] == '"';
      if (c == '"' && !doubled)
        in_quotes = false;
      else
        field += c;
      i += doubled;
    } else if (c == '"') {
      in_quotes = true;
    } else if (c == ',' || c == '\n') {
      record.push_back(std::move(field));
      field.clear();
      if (c == '\n') {
        result.push_back(std::move(record));
        record.clear();
      }
    } else if (c != '\r') {
      field += c;
    }
  }
  check(!in_quotes && field.empty() && record.empty(), "csv: the last line is cut off");
  return result;
}

}  // namespace

std::string to_text(const Cell& cell) {
  const auto* text = std::get_if<std::string>(&cell);
  return text ? *text : shortest(std::get<double>(cell));
}

Table::Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<Cell> row) {
  check(row.size() == columns_.size(), "table: needs ", columns_.size(), " cells, one for each of ",
        columns_, ", got ", row.size());
  rows_.push_back(std::move(row));
}

size_t Table::index(const std::string& column) const {
  const auto found = std::ranges::find(columns_, column);
  check(found != columns_.end(), "table: there is no column '", column, "' in ", columns_);
  return found - columns_.begin();
}

Table Table::where(const std::string& column, const Cell& value) const {
  const size_t at = index(column);
  Table result(columns_);
  for (const auto& row : rows_)
    if (row[at] == value) result.rows_.push_back(row);
  check(!result.empty(), "table: no row has '", to_text(value), "' in column '", column, "'");
  return result;
}

std::vector<double> Table::numbers(const std::string& column) const {
  const size_t at = index(column);
  std::vector<double> result;
  for (const auto& row : rows_) {
    const double* number = std::get_if<double>(&row[at]);
    check(number, "table: '", to_text(row[at]), "' in column '", column, "' is no number");
    result.push_back(*number);
  }
  return result;
}

double Table::number(const std::string& column) const {
  check(rows_.size() == 1, "table: asked for the only number of '", column, "' among ",
        rows_.size(), " rows");
  return numbers(column)[0];
}

std::vector<Cell> Table::distinct(const std::string& column) const {
  const size_t at = index(column);
  std::vector<Cell> result;
  for (const auto& row : rows_)
    if (std::ranges::find(result, row[at]) == result.end()) result.push_back(row[at]);
  return result;
}

std::string Table::csv() const {
  std::string result;
  const auto add_line = [&](const auto& cells, const auto& text_of) {
    for (size_t i = 0; i < cells.size(); ++i) result += (i ? "," : "") + quoted(text_of(cells[i]));
    result += '\n';
  };
  add_line(columns_, [](const std::string& name) { return name; });
  for (const auto& row : rows_) add_line(row, to_text);
  return result;
}

Table Table::from_csv(const std::string& text) {
  const auto lines = records(text);
  check(!lines.empty(), "csv: no header line");
  Table table(lines[0]);
  for (size_t i = 1; i < lines.size(); ++i) {
    std::vector<Cell> row;
    for (const std::string& field : lines[i]) row.push_back(parse(field));
    table.add(std::move(row));
  }
  return table;
}

Table read_table(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return Table::from_csv(text);
  } catch (const Error& error) {
    fail(path.string(), " is no table: ", error.what());
  }
}

}  // namespace tapeformer::lab
