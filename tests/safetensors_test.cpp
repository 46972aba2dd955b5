// Safetensors: what is written is read back, and no file can do harm.
#include "train/safetensors.h"

#include <sys/stat.h>

#include <cstring>

#include "core/random.h"
#include "tests/catch.h"
#include "tests/locale_with_comma.h"
#include "tests/temporary_folder.h"
#include "train/files.h"

using namespace tapeformer;

namespace {

// A file with the given header and `data_bytes` bytes of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\1');
}

// What the reader says of a file with these bytes; "" when it takes the file.
std::string objection(const TemporaryFolder& folder, const std::string& bytes) {
  const auto path = folder / "file";
  write_bytes(path, bytes);
  try {
    const Safetensors file(path);
    for (const Safetensors::Entry& entry : file.entries()) {
      try {
        file.read(entry.name);
      } catch (const Error&) {
      }
    }
    return "";
  } catch (const Error& error) {
    CHECK_THAT(error.what(), ContainsSubstring(path.string()));
    return error.what();
  }
}

void check_same(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  REQUIRE(a.dtype() == b.dtype());
  CHECK(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

}  // namespace

TEST_CASE("safetensors_read_back_what_was_written") {
  const TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  const auto half = [](DType dtype) {
    const Tensor tensor = Tensor::empty({2, 3}, dtype);
    std::memcpy(tensor.raw(), "abcdefghijkl", 12);
    return tensor;
  };
  const NamedTensors tensors = {
      {"weight", Tensor::from<float>({1, -2.5f, 3e-42f, 4, 5, 6}, {2, 3})},
      {"scalar", Tensor::from<double>({0.1}, {})},
      {"none", Tensor::empty({3, 0, 2})},
      {"six", Tensor::from<int32_t>({-7}, {1, 1, 1, 1, 1, 1})},
      {"half", half(DType::f16)},
      {"brain", half(DType::bf16)},
      {"a \"name\" \\ with\nodd signs é", Tensor::from<float>({8})},
  };
  const Metadata metadata = {{"config", "{\"a\": [1, \"é\"]}"}, {"", ""}, {"nul", {"a\0b", 3}}};
  save_safetensors(path, tensors, metadata);

  const Safetensors file(path);
  CHECK(file.metadata() == metadata);
  REQUIRE(file.entries().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) check_same(file.read(name), tensor);
  CHECK(file.find("weight")->dtype == "F32");
  CHECK(file.find("weight")->shape == std::vector<int64_t>{2, 3});
  CHECK(file.find("other") == nullptr);
}

TEST_CASE("safetensors_have_the_bytes_of_the_format") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a", {{"w", Tensor::from<float>({1.0f})}}, {{"k", "v"}});
  std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize(80, ' ');  // 79 and padding
  CHECK(read_file(folder / "a") ==
        std::string("\x50\0\0\0\0\0\0\0", 8) + header + std::string("\0\0\x80\x3f", 4));
}

TEST_CASE("safetensors_align_every_tensor_to_its_elements") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a", {{"half", Tensor::empty({3}, DType::f16)},
                                  {"single", Tensor::from<float>({1})},
                                  {"double", Tensor::from<double>({2, 3})}});
  const Safetensors file(folder / "a");
  const auto size = static_cast<uint64_t>(std::filesystem::file_size(folder / "a"));
  CHECK((size - file.entries().back().end) % 8 == 0);  // where the data starts
  CHECK(file.find("double")->begin % 8 == 0);
  CHECK(file.find("single")->begin % 4 == 0);
  CHECK(file.find("half")->begin % 2 == 0);
}

TEST_CASE("safetensors_of_equal_content_are_equal_bytes_under_every_locale") {
  const TemporaryFolder folder;
  const NamedTensors tensors = {{"w", Tensor::full({40, 50}, 0.5)}};
  save_safetensors(folder / "a", tensors, {{"x", "1"}, {"y", "2"}});
  const LocaleWithComma locale;
  save_safetensors(folder / "b", tensors, {{"y", "2"}, {"x", "1"}});
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
  CHECK(Safetensors(folder / "b").read("w").dim(1) == 50);
}

TEST_CASE("safetensors_refuse_to_write_what_could_not_be_read") {
  const TemporaryFolder folder;
  const Tensor w = Tensor::from<float>({1});
  CHECK_THROWS_WITH(save_safetensors(folder / "a", {{"w", w}, {"w", w}}),
                    ContainsSubstring("two tensors are named \"w\""));
  CHECK_THROWS_WITH(save_safetensors(folder / "a", {{"__metadata__", w}}),
                    ContainsSubstring("\"__metadata__\""));
  CHECK_THROWS_WITH(save_safetensors(folder / "a", {{"\xff", w}}), ContainsSubstring("UTF-8"));
  CHECK(folder.files() == 0);
}

TEST_CASE("safetensors_read_into_compares_shape_and_dtype") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a", {{"w", Tensor::full({2, 3}, 7)}});
  const Safetensors file(folder / "a");
  const Tensor target = Tensor::zeros({2, 3});
  file.read_into("w", target);
  CHECK(target.to_vector<float>() == std::vector<float>(6, 7.0f));
  CHECK_THROWS_WITH(file.read_into("w", Tensor::zeros({3, 2})),
                    ContainsSubstring("a: tensor \"w\": expected F32 [3, 2], found F32 [2, 3]"));
  CHECK_THROWS_WITH(file.read_into("w", Tensor::zeros({2, 3}, DType::f64)),
                    ContainsSubstring("expected F64 [2, 3], found F32 [2, 3]"));
  CHECK_THROWS_WITH(file.read("v"), ContainsSubstring("has no tensor \"v\""));
}

TEST_CASE("safetensors_cut_off_at_any_byte_are_refused") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a",
                   {{"w", Tensor::full({3}, 1)}, {"b", Tensor::full({1}, 2, DType::f64)}},
                   {{"key", "value"}});
  const std::string bytes = read_file(folder / "a");
  REQUIRE(objection(folder, bytes) == "");
  for (size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    CHECK(objection(folder, bytes.substr(0, length)) != "");
  }
  CHECK_THAT(objection(folder, bytes + "x"), ContainsSubstring("1 bytes after the last tensor"));
}

TEST_CASE("safetensors_that_shrink_while_open_are_an_error") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a", {{"w", Tensor::full({100}, 1)}});
  const Safetensors file(folder / "a");
  std::filesystem::resize_file(folder / "a", 200);
  CHECK_THROWS_WITH(file.read("w"), ContainsSubstring("ends at byte 200"));
}

TEST_CASE("safetensors_with_a_lying_header_are_refused_with_the_reason") {
  const TemporaryFolder folder;
  struct Case {
    std::string header;
    size_t data_bytes;
    std::string reason;
  };
  const auto w = [](const std::string& dtype, const std::string& shape,
                    const std::string& offsets) {
    return "\"w\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  const auto only = [&](auto... parts) { return "{" + w(parts...) + "}"; };
  const std::string v = R"("v":{"dtype":"F32","shape":[1],"data_offsets":)";
  const Case cases[] = {
      {only("F32", "[2]", "[0,4]"), 4, "do not hold the 8 bytes"},
      {only("F32", "[2]", "[8,0]"), 8, "do not hold the 8 bytes"},
      {only("F32", "[2]", "[0,8]"), 7, "truncated"},
      {only("F32", "[1]", "[4,8]"), 8, "begins at 4, expected 0"},
      {only("F32", "[1]", "[18446744073709551612,0]"), 4, "do not hold"},
      {only("F32", "[4611686018427387904]", "[0,0]"), 0, "too many elements"},
      {only("F32", "[4294967296,4294967296]", "[0,0]"), 0, "too many elements"},
      {only("F32", "[-1]", "[0,4]"), 4, "wrong kind at \"w\""},
      {only("F32", "[1.0]", "[0,4]"), 4, "wrong kind at \"w\""},
      {only("F32", "[99999999999999999999]", "[0,4]"), 4, "wrong kind at \"w\""},
      {only("F32", "[[1]]", "[0,4]"), 4, "wrong kind at \"w\""},
      {only("F32", "[1]", "[0]"), 4, "needs two data_offsets"},
      {only("F32", "[1]", "[0,4,8]"), 4, "wrong kind at \"w\""},
      {only("F31", "[1]", "[0,4]"), 4, "unknown dtype \"F31\""},
      {"{" + w("F32", "[1]", "[0,4]") + "," + w("F32", "[1]", "[4,8]") + "}", 8, "occurs twice"},
      {"{" + w("F32", "[1]", "[0,4]") + "," + v + "[0,4]}}", 4, "hole or an overlap"},
      {"{" + w("F32", "[1]", "[0,4]") + "," + v + "[8,12]}}", 12, "hole or an overlap"},
      {R"({"w":{"dtype":"F32","shape":[1]}})", 4, "lacks dtype, shape or data_offsets"},
      {R"({"w":{"dtype":"F32","dtype":"F32"}})", 4, "a field twice"},
      {R"({"w":{"colour":"red"}})", 4, "unknown field \"colour\""},
      {R"({"w":7})", 0, "wrong kind at \"w\""},
      {R"({"__metadata__":{"a":1}})", 0, "wrong kind at \"a\""},
      {R"({"__metadata__":{"a":"b","a":"c"}})", 0, "metadata \"a\" occurs twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "occurs twice"},
      {R"({"a":)", 0, "no valid JSON"},
      {R"({} {})", 0, "no valid JSON"},
      {"{\"\xff\":1}", 0, "no valid JSON"},
      {std::string("{}\0", 3), 0, "no JSON object"},
      {"[]", 0, "no JSON object"},
      {"", 0, "no JSON object"},
      {" {}", 0, "no JSON object"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.header);
    CHECK_THAT(objection(folder, file_of(c.header, c.data_bytes)), ContainsSubstring(c.reason));
  }
  CHECK(objection(folder, file_of(only("F32", "[1]", "[0,4]"), 4)) == "");
  CHECK(objection(folder, file_of("{}   ", 0)) == "");
}

TEST_CASE("safetensors_of_types_without_a_tensor_are_listed_but_not_read") {
  const TemporaryFolder folder;
  const std::string header = R"({"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},
      "r":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[3,7]}})";
  write_bytes(folder / "a", file_of(header, 7));
  const Safetensors file(folder / "a");
  CHECK(file.entries().size() == 2);
  CHECK_THROWS_WITH(file.read("b"), ContainsSubstring("dtype BOOL cannot be read; F32, F64"));
  CHECK_THROWS_WITH(file.read("r"), ContainsSubstring("has 7 dimensions, at most 6"));
}

TEST_CASE("safetensors_do_not_believe_the_length_of_the_header") {
  const TemporaryFolder folder;
  for (const uint64_t length : {uint64_t{100}, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
    std::string bytes = file_of("{}", 0);
    std::memcpy(bytes.data(), &length, 8);
    CHECK_THAT(objection(folder, bytes), ContainsSubstring("the header should have"));
  }
  // A file large enough for it, but without blocks on the disk.
  std::string bytes = file_of("{}", 0);
  const uint64_t length = 150'000'000;
  std::memcpy(bytes.data(), &length, 8);
  write_bytes(folder / "a", bytes);
  std::filesystem::resize_file(folder / "a", 200'000'000);
  CHECK_THROWS_WITH(Safetensors(folder / "a"), ContainsSubstring("more than 100000000"));
}

TEST_CASE("safetensors_refuse_deeply_nested_headers_at_once") {
  const TemporaryFolder folder;
  const auto repeated = [](const std::string& piece) {
    std::string text;
    for (int i = 0; i < 300'000; ++i) text += piece;
    return text;
  };
  CHECK(objection(folder, file_of("{\"a\":" + repeated("["), 0)) != "");
  CHECK(objection(folder, file_of(repeated("{\"a\":"), 0)) != "");
  CHECK(objection(folder, file_of("{\"w\":{\"shape\":" + repeated("["), 0)) != "");
}

TEST_CASE("safetensors_with_changed_bytes_give_a_value_or_an_error") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a", {{"w", Tensor::full({3}, 1)}, {"b", Tensor::full({2}, 2)}},
                   {{"key", "value"}});
  const std::string bytes = read_file(folder / "a");
  Generator random(RandomKey{7});
  for (int round = 0; round < 3000; ++round) {
    std::string changed = bytes;
    const uint32_t changes = 1 + random.below(4);
    for (uint32_t i = 0; i < changes; ++i)
      changed[random.below(static_cast<uint32_t>(changed.size()))] =
          round % 2 ? static_cast<char>(random.next()) : "{}[]\",:0149"[random.below(11)];
    CHECK_NOTHROW(objection(folder, changed));
  }
}

TEST_CASE("safetensors_are_only_read_from_regular_files") {
  const TemporaryFolder folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(Safetensors(folder / "missing"), ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(Safetensors(folder.path), ContainsSubstring("is a folder"));
  CHECK_THROWS_WITH(Safetensors(folder / "pipe"), ContainsSubstring("is a pipe or device"));
  CHECK_THROWS_WITH(Safetensors("/dev/null"), ContainsSubstring("is a pipe or device"));
}
