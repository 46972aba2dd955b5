// The JSON of a model's configuration.
#include "tests/fuzz/fuzz.h"
#include "train/model_config.h"

using namespace tapeformer;

const std::vector<std::string> seeds = {
    "{}", to_json({.vocabulary = 65, .norm = "rmsnorm", .dropout = 0.1, .tied = false}),
    R"({"layers":-1,"norm":["a"],"rotary_base":1e5,"bias":null})"};

FUZZ_TARGET(input) {
  only_errors([&] {
    const TransformerConfig config = config_from_json(input);
    promise(config_from_json(to_json(config)) == config, "a configuration survives its JSON");
  });
}
