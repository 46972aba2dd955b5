// Includes run one way, core <- autograd <- layers <- optim <- train <- lab <- examples and
// core <- data <- train: reads every file of the tree and fails on an arrow that runs back.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;
using Files = std::map<std::string, std::string>;  // path from the root of the tree -> text

// Which layers a layer's files may include, besides their own.
const std::map<std::string, Names> may_include = {
    {"core", {}},
    {"autograd", {"core"}},
    {"layers", {"core", "autograd"}},
    {"optim", {"core", "autograd", "layers"}},
    {"data", {"core"}},
    {"train", {"core", "autograd", "layers", "optim", "data"}},
    {"lab", {"core", "autograd", "layers", "optim", "data", "train"}},
    {"examples", {"core", "autograd", "layers", "optim", "data", "train", "lab"}},
};
// What no layer may include, though the rest of the tree may.
const Names above_all = {"tests", "bench", "examples"};

std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }
bool begins_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}
bool is_backend(const std::string& path) {
  return begins_with(path, "core/cpu/") || begins_with(path, "core/cuda/");
}
bool is_header(const std::string& path) { return fs::path(path).extension() == ".h"; }

/// What a file includes, as paths from the root where they lead into the tree, and otherwise as
/// they are written.
std::vector<std::string> includes_of(const std::string& path, const std::string& text) {
  std::vector<std::string> includes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(
        std::remove_if(line.begin(), line.end(), [](char c) { return c == ' ' || c == '\t'; }),
        line.end());
    if (!begins_with(line, "#include") || line.size() < 10) continue;
    const char close = line[8] == '<' ? '>' : '"';
    const std::string name = line.substr(9, line.find(close, 9) - 9);
    const std::string folder = folder_of(name);
    const bool from_root = may_include.count(folder) || above_all.count(folder);
    const bool beside = close == '"' && !from_root;
    includes.push_back(beside ? (fs::path(path).parent_path() / name).lexically_normal().string()
                              : name);
  }
  return includes;
}

/// The reason why `from` must not include `to`; empty when it may.
std::string objection(const std::string& from, const std::string& to) {
  const std::string layer = folder_of(from), other = folder_of(to);
  const auto allowed = may_include.find(layer);
  if (allowed == may_include.end()) return "";  // tests and benchmarks look everywhere
  if (layer != other && !allowed->second.count(other) &&
      (may_include.count(other) || above_all.count(other)))
    return layer + " stands below " + other;
  if (layer == "optim" && other == "layers" && to != "layers/module.h")
    return "optim sees of layers only module.h";
  if (is_backend(to) && layer != "core") return "a backend is reached through core/kernels.h";
  if (is_backend(to) && is_header(from) && !is_backend(from))
    return "a public header must not need one that is not installed";
  if (is_header(from) && !is_backend(from) && layer != "examples" &&
      (to == "omp.h" || to == "cblas.h" || begins_with(to, "nlohmann/")))
    return "a public header must not need another library's";
  return "";
}

/// One line for each include that runs against the order.
std::vector<std::string> backward_arrows(const Files& files) {
  std::vector<std::string> found;
  for (const auto& [path, text] : files)
    for (const std::string& include : includes_of(path, text))
      if (const std::string why = objection(path, include); !why.empty())
        found.push_back(path + " includes " + include + ": " + why);
  return found;
}

Files read_tree() {
  const fs::path root = TAPEFORMER_SOURCE_DIR;
  Files files;
  for (const auto& [layer, unused] : may_include) {
    if (!fs::exists(root / layer)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / layer)) {
      const fs::path extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
        continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      files[entry.path().lexically_relative(root).generic_string()] = text.str();
    }
  }
  return files;
}

}  // namespace

TEST_CASE("includes_run_one_way") {
  const Files files = read_tree();
  for (const char* known : {"core/tensor.h", "autograd/ops.h", "layers/module.h"})
    CHECK(files.count(known) == 1);
  CHECK(backward_arrows(files) == std::vector<std::string>{});
}

TEST_CASE("an_include_that_runs_back_is_found") {
  const auto arrow = [](const std::string& path, const std::string& include) {
    const auto found = backward_arrows({{path, "// A file.\n#pragma once\n" + include + "\n"}});
    return found.empty() ? std::string() : found[0];
  };
  CHECK(arrow("core/tensor.cpp", "#include \"autograd/tape.h\"") ==
        "core/tensor.cpp includes autograd/tape.h: core stands below autograd");
  CHECK(arrow("core/cpu/norm.cpp", "  #  include <layers/norm.h>") != "");
  CHECK(arrow("layers/gpt.h", "#include \"../train/sampling.h\"") ==
        "layers/gpt.h includes train/sampling.h: layers stands below train");
  CHECK(arrow("data/text.h", "#include \"layers/module.h\"") != "");
  CHECK(arrow("layers/gpt.h", "#include \"data/text.h\"") != "");
  CHECK(arrow("lab/card.cpp", "#include \"tests/catch.h\"") != "");
  CHECK(arrow("optim/sgd.cpp", "#include \"layers/linear.h\"") ==
        "optim/sgd.cpp includes layers/linear.h: optim sees of layers only module.h");
  CHECK(arrow("layers/gpt.cpp", "#include \"core/cpu/simd.h\"") != "");
  CHECK(arrow("core/tensor.h", "#include \"core/cpu/simd.h\"") != "");
  CHECK(arrow("train/metrics.h", "#include <nlohmann/json.hpp>") != "");
}

namespace {

/// The options that string literals of a file name without the program that has them.
std::vector<std::string> options_of_nobody(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    for (size_t at = 0; (at = line.find("--", at)) != line.npos; at += 2) {
      const bool quoted = std::count(line.begin(), line.begin() + at, '"') % 2 == 1;
      const bool word = at + 2 < line.size() && line[at + 2] >= 'a' && line[at + 2] <= 'z';
      const bool named = at >= 10 && line.compare(at - 10, 10, "train_gpt ") == 0;
      if (quoted && word && !named) found.push_back(line);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("the_library_speaks_of_no_option_that_the_program_may_lack") {
  for (const auto& [path, text] : read_tree()) {
    const std::string layer = folder_of(path);
    if (layer == "examples" || layer == "lab") continue;  // they have a command line
    CAPTURE(path);
    CHECK(options_of_nobody(text) == std::vector<std::string>{});
  }
  CHECK(options_of_nobody("fail(\"lower --batch\");\ncheck(a, \"train_gpt --batch\", --b);\n") ==
        std::vector<std::string>{"fail(\"lower --batch\");"});
}

TEST_CASE("an_include_that_runs_forward_is_no_objection") {
  const Files files = {
      {"core/tensor.cpp", "#include \"core/cpu/parallel.h\"\n#include <omp.h>\n"},
      {"core/cpu/gemm.h", "#include <cblas.h>\n"},
      {"optim/sgd.cpp", "#include \"layers/module.h\"\n#include \"autograd/tape.h\"\n"},
      {"train/loop.cpp", "#include \"data/text.h\"\n#include <nlohmann/json.hpp>\n"},
      {"train/loop.h", "// #include \"lab/card.h\"\n#include \"format.h\"\n#include <vector>\n"},
      {"examples/xor.cpp", "#include \"train/loop.h\"\n"},
      {"tests/gemm_test.cpp", "#include \"core/cpu/gemm.h\"\n"},
  };
  CHECK(backward_arrows(files) == std::vector<std::string>{});
}
