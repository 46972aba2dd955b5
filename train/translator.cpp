#include "train/translator.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/bpe.h"
#include "data/json_text.h"
#include "data/unicode.h"
#include "train/model_config.h"
#include "train/translation_scores.h"

namespace tapeformer {

SentenceCoders learn_coders(const std::vector<SentencePair>& pairs, int64_t merges, bool lowercase,
                            bool separate) {
  const auto add = [&](BpeTrainer& trainer, const std::string& sentence) {
    trainer.add(" " + (lowercase ? lower_case(sentence) : sentence));
  };
  BpeTrainer sources, targets;
  for (const SentencePair& pair : pairs) {
    add(sources, pair.source);
    add(separate ? targets : sources, pair.target);
  }
  const auto source = sources.train(merges);
  return {SentenceCoder(source, lowercase),
          SentenceCoder(separate ? targets.train(merges) : source, lowercase)};
}

// ---- Its file.

std::string to_json(const SentenceCoders& coders) {
  nlohmann::ordered_json json{{"name", "pair"}, {"lowercase", coders.source.lowercase()}};
  json["source"] = coders.source.tokenizer().to_json();
  if (&coders.source.tokenizer() != &coders.target.tokenizer())
    json["target"] = coders.target.tokenizer().to_json();
  return json.dump();
}

SentenceCoders coders_from_json(std::string_view text) {
  check(is_modest_json(text, size_t{64} << 20), "translator: its tokenizers are too long");
  const auto json = nlohmann::json::parse(text, nullptr, false);
  check(json.is_object() && json.value("name", nlohmann::json()) == "pair" &&
            json.value("lowercase", nlohmann::json()).is_boolean() &&
            json.value("source", nlohmann::json()).is_string(),
        "translator: this is the checkpoint of another kind of model; give one of `translate "
        "train`");
  const bool lowercase = json["lowercase"];
  const auto source = Tokenizer::from_json(json["source"].get<std::string>());
  const bool shared = !json.contains("target");
  check(shared || json["target"].is_string(), "translator: its target tokenizer is no string");
  const auto target = shared ? source : Tokenizer::from_json(json["target"].get<std::string>());
  return {SentenceCoder(source, lowercase), SentenceCoder(target, lowercase)};
}

Translator load_translator(const std::filesystem::path& folder_or_file, Device device) {
  std::filesystem::path path = folder_or_file;
  if (const auto best = path / "best.safetensors"; std::filesystem::exists(best)) path = best;
  ModelFile description = read_model_file(path);
  SentenceCoders coders = coders_from_json(description.tokenizer);
  const TransformerConfig config = config_from_json(description.config);
  check_claim(description, config, path.string());
  const int64_t source = config.source_vocabulary ? config.source_vocabulary : config.vocabulary;
  check(coders.target.vocabulary() == config.vocabulary && coders.source.vocabulary() == source,
        path.string(), ": its tokenizers have ", coders.source.vocabulary(), " and ",
        coders.target.vocabulary(), " ids and its model ", source, " and ", config.vocabulary,
        "; they do not belong together");
  auto model = std::make_unique<Seq2Seq>(config);
  convert(*model, description.dtype, device);
  load_model(path, *model);
  return {std::move(model), std::move(coders), std::move(description)};
}

// ---- Translating.

namespace {

// Runs `decode(batch, the numbers of its sentences)` over batches of sentences of about equal
// length, and puts the results in order.
template <class Decode>
TranslationRun run_batches(Seq2Seq& model, const SentenceCoders& coders,
                           const std::vector<std::string>& sentences, int64_t batch_tokens,
                           const Decode& decode) {
  TranslationRun run;
  run.sentences.resize(sentences.size());
  run.ids.resize(sentences.size());
  std::vector<size_t> order;
  const auto longest = static_cast<size_t>(model.config().context) - 1;  // and the end
  const auto length = [&](size_t i) { return run.ids[i].source.size(); };
  for (size_t i = 0; i < sentences.size(); ++i) {
    run.ids[i].source = coders.source.encode(sentences[i]);
    if (length(i) > longest) {
      run.ids[i].source.resize(longest);
      ++run.cut;
    }
    if (length(i) > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return length(a) < length(b); });
  for (size_t begin = 0; begin < order.size();) {
    std::vector<std::vector<int32_t>> batch;
    size_t end = begin;
    while (end < order.size() &&
           (end == begin ||
            static_cast<int64_t>((end + 1 - begin) * (length(order[end]) + 1)) <= batch_tokens))
      batch.push_back(run.ids[order[end++]].source);
    const std::span<const size_t> numbers(order.data() + begin, batch.size());
    std::vector<Translation> translations = decode(pad(batch, coders.source.end()), numbers);
    for (size_t i = 0; i < batch.size(); ++i) {
      run.sentences[numbers[i]] = coders.target.decode(translations[i].ids);
      run.ids[numbers[i]].target = std::move(translations[i].ids);
      run.mean_score += translations[i].score / static_cast<double>(order.size());
    }
    begin = end;
  }
  return run;
}

}  // namespace

TranslationRun translate_sentences(Seq2Seq& model, const SentenceCoders& coders,
                                   const std::vector<std::string>& sentences,
                                   const DecodingOptions& options, int64_t batch_tokens) {
  const int64_t wide = std::max<int64_t>(1, options.beam / 5);
  return run_batches(model, coders, sentences, batch_tokens / wide,
                     [&](const PaddedSentences& source, std::span<const size_t>) {
                       return translate(model, source, coders.target.end(), options);
                     });
}

TranslationRun sample_sentences(Seq2Seq& model, const SentenceCoders& coders,
                                const std::vector<std::string>& sentences,
                                const SamplingOptions& sampling, uint64_t seed, int64_t first,
                                int64_t batch_tokens) {
  return run_batches(
      model, coders, sentences, batch_tokens,
      [&](const PaddedSentences& source, std::span<const size_t> numbers) {
        std::vector<RandomKey> keys;
        for (const size_t number : numbers)
          keys.push_back({seed, Purpose::sampling, static_cast<uint32_t>(first + number), 1});
        return sample_translations(model, source, coders.target.end(), sampling, keys);
      });
}

// ---- Training.

double translation_loss(Seq2Seq& model, const PairCorpus& corpus, const StopRequest& stop) {
  const Pause pause;
  double sum = 0;
  for (int64_t i = 0; i < corpus.batches(); ++i) {
    end_where_asked(stop);
    const PairBatch batch = corpus.ordered_batch(i);
    const Context context{.lengths = batch.lengths, .memory_lengths = batch.source.lengths};
    sum += static_cast<double>(batch.tokens) *
           model.loss(batch.source.ids, batch.inputs, batch.targets, context).item();
  }
  return sum / static_cast<double>(corpus.target_tokens());
}

TranslationTask::TranslationTask(Seq2Seq& model, const SentenceCoders& coders,
                                 const PairCorpus& training, const PairCorpus& validation,
                                 std::vector<SentencePair> validation_text,
                                 const TranslationTaskOptions& options)
    : model_(model),
      coders_(coders),
      training_(training),
      validation_(validation),
      options_(options) {
  check(options.accumulate > 0, "translation: accumulate must be positive, got ",
        options.accumulate);
  check(options.smoothing >= 0 && options.smoothing < 1,
        "translation: label smoothing must be in [0, 1), got ", options.smoothing);
  check(options.bleu_sentences >= 0,
        "translation: the number of sentences for BLEU must not be negative, got ",
        options.bleu_sentences);
  for (SentencePair& pair : validation_text) {
    sources_.push_back(std::move(pair.source));
    references_.push_back(std::move(pair.target));
  }
}

std::vector<MicroBatch> TranslationTask::micro_batches(int64_t step) {
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    const PairBatch batch = training_.training_batch(step * options_.accumulate + i);
    const auto places = static_cast<double>(batch.source.ids.numel() + batch.inputs.numel());
    places_ += places;
    padding_ += places * batch.padding();
    batches.push_back({batch.tokens, [this, batch] {
                         const Context context{.training = true,
                                               .lengths = batch.lengths,
                                               .memory_lengths = batch.source.lengths};
                         return model_.loss(batch.source.ids, batch.inputs, batch.targets, context,
                                            options_.smoothing);
                       }});
  }
  return batches;
}

// Always on the same sentences, so that evaluations can be compared.
Validation TranslationTask::validate(bool, const StopRequest& stop) {
  latest_.loss = translation_loss(model_, validation_, stop);
  // What knows less than a uniform guess writes noise of the greatest length: not worth the time.
  if (latest_.loss >= std::log(static_cast<double>(model_.config().vocabulary))) {
    translations_.clear();
    latest_.bleu = 0;
    return latest_;
  }
  const size_t all = sources_.size();
  const size_t count =
      options_.bleu_sentences ? std::min(all, static_cast<size_t>(options_.bleu_sentences)) : all;
  const std::vector<std::string> sources(sources_.begin(), sources_.begin() + count);
  const std::vector<std::string> references(references_.begin(), references_.begin() + count);
  translations_ =
      translate_sentences(model_, coders_, sources, {.beam = 1, .stop = stop}).sentences;
  latest_.bleu = bleu(translations_, references, true).score;
  return latest_;
}

}  // namespace tapeformer
