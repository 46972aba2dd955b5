#include "train/decoding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/host_values.h"

namespace tapeformer {
namespace {

/// A translation that is being written: row i of the batch is hypothesis i.
struct Hypothesis {
  int64_t sentence = 0;
  std::vector<int32_t> ids;
  double log_probability = 0;
};

// The log probabilities of what follows each hypothesis, over a cache where there can be one.
class Scorer {
 public:
  Scorer(Seq2Seq& model, const PaddedSentences& source, int32_t end, int64_t longest)
      : model_(model),
        source_(source),
        end_(end),
        cached_(model.decoder_mixes(false) == Mixes::nothing) {
    if (cached_) cache_ = model.start(source.ids, source.lengths, longest);
  }

  /// Goes on with these hypotheses, the i-th of which continues the parents[i]-th of before.
  void select(const std::vector<Hypothesis>& hypotheses, const std::vector<int32_t>& parents) {
    std::vector<int64_t> sentences;
    for (const Hypothesis& hypothesis : hypotheses) sentences.push_back(hypothesis.sentence);
    const bool same_memory = sentences == sentences_;
    sentences_ = std::move(sentences);
    bool same = same_memory;
    for (size_t i = 0; i < parents.size(); ++i) same &= parents[i] == static_cast<int32_t>(i);
    if (cached_ && !same) cache_.select(parents, !same_memory);
  }

  /// [hypotheses, V], f32, on the host. Throws where they are not numbers.
  Tensor log_probabilities(const std::vector<Hypothesis>& hypotheses) {
    const Pause pause;
    const Tensor scores = log_softmax(cast(logits(hypotheses), DType::f32)).to(Device::cpu);
    for (int64_t row = 0; row < scores.dim(0); ++row)  // one such logit spoils its row
      check(!std::isnan(scores.data<float>()[row * scores.dim(1)]),
            "decoding: the model's logits are not finite; its weights are broken, or its training "
            "diverged");
    return scores;
  }

 private:
  Tensor logits(const std::vector<Hypothesis>& hypotheses) {
    std::vector<int32_t> ids;
    const auto rows = static_cast<int64_t>(hypotheses.size());
    if (cached_) {
      for (const Hypothesis& h : hypotheses) ids.push_back(h.ids.empty() ? end_ : h.ids.back());
      return model_.decode(Tensor::from(ids, {rows, 1}), cache_);
    }
    // All of it again, for each token.
    std::vector<int32_t> sources, lengths;
    const int64_t S = source_.ids.dim(1);
    for (const Hypothesis& h : hypotheses) {
      const int32_t* const row = source_.ids.data<int32_t>() + h.sentence * S;
      sources.insert(sources.end(), row, row + S);
      lengths.push_back(source_.lengths.data<int32_t>()[h.sentence]);
      ids.push_back(end_);
      ids.insert(ids.end(), h.ids.begin(), h.ids.end());
    }
    const auto T = static_cast<int64_t>(ids.size()) / rows;
    const Tensor all = model_.logits(Tensor::from(sources, {rows, S}), Tensor::from(ids, {rows, T}),
                                     {.memory_lengths = Tensor::from(lengths)});
    return reshape(slice(all, 1, T - 1, T), {rows, -1});
  }

  Seq2Seq& model_;
  const PaddedSentences& source_;
  int32_t end_;
  bool cached_;
  Seq2Seq::Cache cache_;
  std::vector<int64_t> sentences_;
};

// The most tokens of each sentence's translation, the end counted.
std::vector<int64_t> limits_of(const Seq2Seq& model, const PaddedSentences& source,
                               int64_t longest) {
  check(longest >= 0, "decoding: longest must not be negative, got ", longest);
  std::vector<int64_t> limits;
  for (const int32_t length : source.lengths.to_vector<int32_t>())
    limits.push_back(std::min(model.config().context, longest ? longest : 2 * length + 10));
  return limits;
}

struct Candidate {
  double log_probability;
  int32_t parent;  // hypothesis
  int32_t token;
  /// The more probable first; among equals the earlier hypothesis and the lower token.
  bool operator<(const Candidate& other) const {
    if (log_probability != other.log_probability) return log_probability > other.log_probability;
    return parent != other.parent ? parent < other.parent : token < other.token;
  }
};

// Adds the `count` best tokens that follow hypothesis `parent`.
void add_best(std::vector<Candidate>& best, const float* scores, int64_t vocabulary,
              const Hypothesis& hypothesis, int32_t parent, size_t count) {
  std::vector<std::pair<float, int32_t>> top;  // the best so far, the least of them first (a heap)
  const auto worse = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  for (int64_t token = 0; token < vocabulary; ++token) {
    if (top.size() == count && !(scores[token] > top.front().first)) continue;
    if (top.size() == count) {
      std::pop_heap(top.begin(), top.end(), worse);
      top.pop_back();
    }
    top.emplace_back(scores[token], static_cast<int32_t>(token));
    std::push_heap(top.begin(), top.end(), worse);
  }
  for (const auto& [score, token] : top)
    best.push_back({hypothesis.log_probability + score, parent, token});
}

/// Beam search over the sentences of one batch.
class Beam {
 public:
  Beam(Seq2Seq& model, const PaddedSentences& source, int32_t end, const DecodingOptions& options)
      : options_(options),
        end_(end),
        vocabulary_(model.config().vocabulary),
        limits_(limits_of(model, source, options.longest)) {
    check(options.beam > 0 && options.beam <= 10'000,
          "decoding: the beam must lie in 1 ... 10000, got ", options.beam);
    check(std::isfinite(options.length_penalty), "decoding: the length penalty is ",
          options.length_penalty);
    const int64_t sentences = source.ids.dim(0);
    ended_.resize(sentences);
    std::vector<int32_t> parents(sentences);
    for (int64_t i = 0; i < sentences; ++i) {
      live_.push_back({i, {}, 0});
      parents[i] = static_cast<int32_t>(i);
    }
    Scorer scorer(model, source, end, *std::max_element(limits_.begin(), limits_.end()));
    while (!live_.empty()) {
      end_where_asked(options.stop);
      scorer.select(live_, parents);
      parents = advance(scorer.log_probabilities(live_));
    }
  }

  std::vector<Translation> best() const {
    std::vector<Translation> result;
    for (const auto& ended : ended_)
      result.push_back(*std::max_element(
          ended.begin(), ended.end(),
          [](const Translation& a, const Translation& b) { return a.score < b.score; }));
    return result;
  }

 private:
  // One more token for all; returns whom the new hypotheses continue.
  std::vector<int32_t> advance(const Tensor& scores) {
    std::vector<Hypothesis> next;
    std::vector<int32_t> parents;
    for (size_t begin = 0; begin < live_.size();) {
      size_t end = begin;
      while (end < live_.size() && live_[end].sentence == live_[begin].sentence) ++end;
      advance_sentence(scores.data<float>(), begin, end, next, parents);
      begin = end;
    }
    live_ = std::move(next);
    return parents;
  }

  void advance_sentence(const float* scores, size_t begin, size_t end,
                        std::vector<Hypothesis>& next, std::vector<int32_t>& parents) {
    const int64_t sentence = live_[begin].sentence;
    const bool last = static_cast<int64_t>(live_[begin].ids.size()) + 1 == limits_[sentence];
    const auto beam = static_cast<size_t>(options_.beam);
    std::vector<Candidate> candidates;
    for (size_t i = begin; i < end; ++i) {
      const float* const row = scores + static_cast<int64_t>(i) * vocabulary_;
      const auto parent = static_cast<int32_t>(i);
      if (last)
        candidates.push_back({live_[i].log_probability + row[end_], parent, end_});
      else  // of twice as many, at most a beam of them ends
        add_best(candidates, row, vocabulary_, live_[i], parent, 2 * beam);
    }
    std::sort(candidates.begin(), candidates.end());
    std::vector<Translation>& ended = ended_[sentence];
    const size_t first = next.size();
    for (size_t i = 0; i < candidates.size() && next.size() - first < beam; ++i) {
      const Candidate& candidate = candidates[i];
      const Hypothesis& parent = live_[candidate.parent];
      if (candidate.token != end_) {
        next.push_back({sentence, parent.ids, candidate.log_probability});
        next.back().ids.push_back(candidate.token);
        parents.push_back(candidate.parent);
      } else if (i < beam) {
        const double length = static_cast<double>(parent.ids.size()) + 1;
        ended.push_back(
            {parent.ids, candidate.log_probability,
             candidate.log_probability / std::pow((5 + length) / 6, options_.length_penalty)});
      }
    }
    if (ended.size() < beam) return;
    next.resize(first);
    parents.resize(first);
  }

  DecodingOptions options_;
  int32_t end_;
  int64_t vocabulary_;
  std::vector<int64_t> limits_;  // tokens, by sentence
  std::vector<Hypothesis> live_;
  std::vector<std::vector<Translation>> ended_;  // by sentence
};

}  // namespace

std::vector<Translation> translate(Seq2Seq& model, const PaddedSentences& source, int32_t end,
                                   const DecodingOptions& options) {
  return Beam(model, source, end, options).best();
}

std::vector<Translation> sample_translations(Seq2Seq& model, const PaddedSentences& source,
                                             int32_t end, const SamplingOptions& sampling,
                                             const std::vector<RandomKey>& keys, int64_t longest) {
  check_sampling_options(sampling);
  const int64_t sentences = source.ids.dim(0), V = model.config().vocabulary;
  check(static_cast<int64_t>(keys.size()) == sentences, "sample_translations: ", keys.size(),
        " keys for ", sentences, " sentences");
  const std::vector<int64_t> limits = limits_of(model, source, longest);
  Scorer scorer(model, source, end, *std::max_element(limits.begin(), limits.end()));
  std::vector<Hypothesis> live;
  std::vector<int32_t> parents;
  std::vector<Generator> generators(keys.begin(), keys.end());
  std::vector<Translation> result(sentences);
  for (int64_t i = 0; i < sentences; ++i) {
    live.push_back({i, {}, 0});
    parents.push_back(static_cast<int32_t>(i));
  }
  while (!live.empty()) {
    scorer.select(live, parents);
    const Tensor scores = scorer.log_probabilities(live);
    std::vector<Hypothesis> next;
    parents.clear();
    for (size_t i = 0; i < live.size(); ++i) {
      Hypothesis& h = live[i];
      const float* const row = scores.data<float>() + static_cast<int64_t>(i) * V;
      const bool last = static_cast<int64_t>(h.ids.size()) + 1 == limits[h.sentence];
      const int32_t token =
          last ? end
               : sample_token({row, static_cast<size_t>(V)}, sampling, generators[h.sentence]);
      h.log_probability += row[token];
      if (token == end) {
        result[h.sentence] = {h.ids, h.log_probability, h.log_probability};
        continue;
      }
      h.ids.push_back(token);
      parents.push_back(static_cast<int32_t>(i));
      next.push_back(std::move(h));
    }
    live = std::move(next);
  }
  return result;
}

std::vector<std::vector<double>> attention_of(Seq2Seq& model, const std::vector<int32_t>& source,
                                              const std::vector<int32_t>& target,
                                              int32_t source_end, int32_t target_end) {
  const Pause pause;
  std::vector<int32_t> inputs{target_end};
  inputs.insert(inputs.end(), target.begin(), target.end());
  const PaddedSentences read = pad({source}, source_end);
  const int64_t T = static_cast<int64_t>(inputs.size()), S = read.ids.dim(1);
  std::vector<std::vector<double>> mean(T, std::vector<double>(S));
  int64_t maps = 0;
  Context context{.memory_lengths = read.lengths};
  context.observe_cross_attention = [&](const Tensor& weights) {  // [1, H, T, S]
    const std::vector<double> values = host_values(weights);
    for (int64_t h = 0; h < weights.dim(1); ++h, ++maps)
      for (int64_t t = 0; t < T; ++t)
        for (int64_t s = 0; s < S; ++s) mean[t][s] += values[(h * T + t) * S + s];
  };
  model.hidden(read.ids, Tensor::from(inputs, {1, T}), context);
  for (auto& row : mean)
    for (double& weight : row) weight /= static_cast<double>(maps);
  return mean;
}

}  // namespace tapeformer
