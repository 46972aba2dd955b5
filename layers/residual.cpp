#include "layers/residual.h"

#include <algorithm>
#include <cmath>

#include "layers/registry.h"

namespace tapeformer {

Residual::Residual(const NormFactory& norm, int64_t channels, int count) {
  for (int i = 0; i < count; ++i) norms_.push_back(norm(channels));
}

void Residual::visit(Visitor& visitor) {
  for (size_t i = 0; i < norms_.size(); ++i)
    visitor.module("norm" + std::to_string(i + 1), *norms_[i]);
}

Mixes Residual::mixes(bool training) const {
  Mixes most = Mixes::nothing;
  for (const auto& norm : norms_) most = std::max(most, norm->mixes(training));
  return most;
}

Tensor value_of(const Stream& stream) {
  return stream.pending.defined() ? stream.x + stream.pending : stream.x;
}

namespace {

using SubLayers = std::span<const SubLayer>;

// {x + pending, N(x + pending)}, in one pass where something is pending.
SumAndNorm sum_and_norm(const Stream& stream, Norm& norm, const NormContext& context) {
  if (stream.pending.defined()) return norm.add_forward(stream.x, stream.pending, 1, context);
  return {stream.x, norm.forward(stream.x, context)};
}

struct Pre : Residual {
  explicit Pre(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const auto [x, normed] = sum_and_norm(stream, *norms_[i], context);
      stream = {x, f[i](normed), {}};  // x + f(N(x))
    }
  }
};

struct Post : Residual {
  explicit Post(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const Tensor x = value_of(stream);
      stream = {norms_[i]->add_forward(x, f[i](x), 1, context).norm, {}, {}};  // N(x + f(x))
    }
  }
};

struct Sandwich : Residual {
  explicit Sandwich(const ResidualOptions& o) : Residual(o.norm, o.channels, 2 * o.sublayers) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const auto [x, normed] = sum_and_norm(stream, *norms_[2 * i], context);
      stream = {x, norms_[2 * i + 1]->forward(f[i](normed), context), {}};  // x + N2(f(N1(x)))
    }
  }
};

struct PostBranch : Residual {
  explicit PostBranch(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const Tensor x = value_of(stream);
      stream = {x, norms_[i]->forward(f[i](x), context), {}};  // x + N(f(x))
    }
  }
};

// Wang et al. 2022, table 1: one stack of L blocks; an encoder of N and a decoder of M.
double deepnorm_alpha(const StackShape& stack) {
  const double own = static_cast<double>(stack.blocks), partner = stack.partner_blocks;
  switch (stack.role) {
    case StackShape::Role::encoder:
      return 0.81 * std::pow(own * own * own * own * partner, 1.0 / 16);
    case StackShape::Role::decoder:
      return std::pow(3 * own, 0.25);
    default:
      return std::pow(2 * own, 0.25);
  }
}
double deepnorm_beta(const StackShape& stack) {
  const double own = static_cast<double>(stack.blocks), partner = stack.partner_blocks;
  switch (stack.role) {
    case StackShape::Role::encoder:
      return 0.87 * std::pow(own * own * own * own * partner, -1.0 / 16);
    case StackShape::Role::decoder:
      return std::pow(12 * own, -0.25);
    default:
      return std::pow(8 * own, -0.25);
  }
}

struct DeepNorm : Residual {
  explicit DeepNorm(const ResidualOptions& o)
      : Residual(o.norm, o.channels, o.sublayers),
        alpha_(deepnorm_alpha({o.role, o.blocks, o.partner_blocks})) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const Tensor x = value_of(stream);
      stream = {norms_[i]->add_forward(x, f[i](x), alpha_, context).norm, {}, {}};
    }
  }

 private:
  double alpha_;
};

struct ReZero : Residual {
  explicit ReZero(const ResidualOptions& o) : Residual(o.norm, o.channels, 0) {
    for (int i = 0; i < o.sublayers; ++i) scales_.push_back(make_parameter({1}));
  }
  void forward(Stream& stream, SubLayers f, const NormContext&) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const Tensor x = value_of(stream);
      stream = {x, scales_[i] * f[i](x), {}};  // x + a f(x)
    }
  }
  void visit(Visitor& visitor) override {
    for (size_t i = 0; i < scales_.size(); ++i)
      visitor.parameter("scale" + std::to_string(i + 1), scales_[i]);
  }

 private:
  std::vector<Tensor> scales_;  // [1] each
};

struct BottomToTop : Residual {
  explicit BottomToTop(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    const Tensor input = value_of(stream);
    Tensor x = input;
    for (size_t i = 0; i < f.size(); ++i) {
      const bool last = i + 1 == f.size();
      const Tensor y = f[i](x);
      x = norms_[i]->add_forward(last ? x + input : x, y, 1, context).norm;
    }
    stream = {x, {}, {}};
  }
};

struct Parallel : Residual {
  explicit Parallel(const ResidualOptions& o) : Residual(o.norm, o.channels, 1) {
    check(o.role == StackShape::Role::alone,
          "placement: 'parallel' has no form with cross-attention between its two sub-layers; "
          "choose another for an encoder-decoder");
  }
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    const auto [x, normed] = sum_and_norm(stream, *norms_[0], context);
    Tensor sum = f[0](normed);
    for (const SubLayer& sublayer : f.subspan(1)) sum = sum + sublayer(normed);
    stream = {x, sum, {}};  // x + f1(N(x)) + f2(N(x))
  }
};

struct ResidualDual : Residual {
  explicit ResidualDual(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    Tensor dual = stream.dual.defined() ? stream.dual : value_of(stream);
    for (size_t i = 0; i < f.size(); ++i) {
      const Tensor x = value_of(stream);
      const Tensor y = f[i](x);
      dual = dual + y;                                                     // r + f(x)
      stream = {norms_[i]->add_forward(x, y, 1, context).norm, {}, dual};  // N(x + f(x))
    }
  }
};

struct NoResidual : Residual {
  explicit NoResidual(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, SubLayers f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i)
      stream = {norms_[i]->forward(f[i](value_of(stream)), context), {}, {}};  // N(f(x))
  }
};

using Made = std::unique_ptr<Residual>;

template <class T>
Made make(const ResidualOptions& options) {
  return std::make_unique<T>(options);
}

Made make_mixed(const ResidualOptions& options) {
  return options.block < options.blocks / 4 ? make<Post>(options) : make<Pre>(options);
}

Tensor finish_with_norm(const Stream& stream, Norm* norm, const NormContext& context) {
  return sum_and_norm(stream, *norm, context).norm;
}

Tensor finish_plain(const Stream& stream, Norm*, const NormContext&) { return value_of(stream); }

Tensor finish_dual(const Stream& stream, Norm* norm, const NormContext& context) {
  return stream.x + norm->forward(stream.dual, context);
}

// L blocks add 2L terms to the stream, in a decoder 3L: this keeps its variance (Radford et al.
// 2019, section 2.3).
double one_over_root_of_terms(const StackShape& stack) {
  return 1 / std::sqrt(static_cast<double>(stack.sublayers()) * stack.blocks);
}

// A stack that sums its branches and has a norm at its end.
Placement summing(Made (*make)(const ResidualOptions&)) {
  return {.make = make, .finish = finish_with_norm, .output_gain = one_over_root_of_terms};
}

Placement plain(Made (*make)(const ResidualOptions&)) {
  return {.make = make, .finish = finish_plain, .has_final_norm = false};
}

Placement peri() {
  Placement placement = summing(make<Sandwich>);
  placement.has_embedding_norm = true;
  return placement;
}

Placement deepnorm() {
  Placement placement = plain(make<DeepNorm>);
  placement.initialization = "xavier";
  placement.branch_gain = deepnorm_beta;
  return placement;
}

Registry<Placement>& placements() {
  static Registry<Placement> registry(
      "placement", {
                       {"pre", summing(make<Pre>)},
                       {"post", plain(make<Post>)},
                       {"sandwich", plain(make<Sandwich>)},
                       {"peri", peri()},
                       {"post-branch", summing(make<PostBranch>)},
                       {"deepnorm", deepnorm()},
                       {"rezero", plain(make<ReZero>)},
                       {"b2t", plain(make<BottomToTop>)},
                       {"parallel", summing(make<Parallel>)},
                       {"mix", summing(make_mixed)},
                       {"residual-dual", {.make = make<ResidualDual>, .finish = finish_dual}},
                       {"no-residual", plain(make<NoResidual>)},
                   });
  return registry;
}

}  // namespace

Placement find_placement(const std::string& name) { return placements().find(name); }
std::vector<std::string> placement_names() { return placements().names(); }
void register_placement(const std::string& name, Placement placement) {
  placements().add(name, std::move(placement));
}

}  // namespace tapeformer
