// The CSV tables of the norm lab.
#include "lab/table.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;
using lab::Table;

const std::vector<std::string> seeds = {"norm,loss\nlayernorm,1.5\n\"a \"\"b\"\", c\",nan\n",
                                        "a\r\n-0\r\n1e5\r\n", "\"a\n\",b\n,\n"};

FUZZ_TARGET(input) {
  only_errors([&] {
    const Table table = Table::from_csv(std::string(input));
    const std::string text = table.csv();
    promise(Table::from_csv(text).csv() == text, "a table survives its CSV");
    for (const std::string& column : table.columns()) {
      promise(table.distinct(column).size() <= table.rows().size(), "distinct cells are cells");
      only_errors([&] { table.numbers(column); });
    }
  });
}
