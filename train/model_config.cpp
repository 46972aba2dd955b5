#include "train/model_config.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "data/json_text.h"
#include "train/memory.h"

namespace tapeformer {
namespace {

// The one list of the fields, for both directions.
template <class Config, class Field>
void each_field(Config& config, const Field& field) {
  field("vocabulary", config.vocabulary);
  field("context", config.context);
  field("layers", config.layers);
  field("heads", config.heads);
  field("kv_heads", config.kv_heads);
  field("channels", config.channels);
  field("hidden", config.hidden);
  field("norm", config.norm);
  field("placement", config.placement);
  field("position", config.position);
  field("activation", config.activation);
  field("initialization", config.initialization);
  field("rotary_base", config.rotary_base);
  field("dropout", config.dropout);
  field("bias", config.bias);
  field("qk_norm", config.qk_norm);
  field("tied", config.tied);
  field("causal", config.causal);
  field("encoder_layers", config.encoder_layers);
  field("source_vocabulary", config.source_vocabulary);
  field("encoder_norm", config.encoder_norm);
  field("decoder_norm", config.decoder_norm);
}

}  // namespace

std::string to_json(const TransformerConfig& config) {
  nlohmann::ordered_json json;
  each_field(config, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump();
}

TransformerConfig config_from_json(std::string_view text) {
  check(is_modest_json(text), "model configuration: too long or too deeply nested to be one");
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  check(json.is_object(), "model configuration: not a JSON object");
  TransformerConfig config;
  each_field(config, [&](const char* name, auto& value) {
    const auto found = json.find(name);
    if (found == json.end()) return;
    using T = std::decay_t<decltype(value)>;
    const bool fits = std::is_same_v<T, bool>          ? found->is_boolean()
                      : std::is_same_v<T, std::string> ? found->is_string()
                      : std::is_same_v<T, int64_t>     ? found->is_number_integer()
                                                       : found->is_number();
    check(fits, "model configuration: '", name, "' has the wrong type: ", found->dump());
    value = found->template get<T>();
    json.erase(found);
  });
  check(json.empty(), "model configuration: unknown key '", json.empty() ? "" : json.begin().key(),
        "'");
  return config;
}

void check_claim(const ModelFile& file, const TransformerConfig& config, const std::string& path) {
  // Every block has tensors of its own.
  for (const int64_t layers : {config.layers, config.encoder_layers})
    check(layers <= file.tensors, path, ": ", layers, " layers are more than its ", file.tensors,
          " tensors");
  const double numbers = matrix_sizes(config).all();
  check(numbers <= file.numbers, path, ": its configuration asks for ", numbers,
        " numbers or more, and its tensors hold ", file.numbers);
  // These positions are computed, so no tensor bounds them.
  check(config.position != "sinusoidal" || config.context <= 1'000'000, path, ": a context of ",
        config.context, " is more than any text");
}

}  // namespace tapeformer
