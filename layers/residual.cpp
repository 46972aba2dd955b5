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

Mixes Residual::mixes() const {
  Mixes most = Mixes::nothing;
  for (const auto& norm : norms_) most = std::max(most, norm->mixes());
  return most;
}

namespace {

// {x + pending, N(x + pending)}, in one pass where something is pending.
SumAndNorm sum_and_norm(const Stream& stream, Norm& norm, const NormContext& context) {
  if (stream.pending.defined()) return norm.add_forward(stream.x, stream.pending, 1, context);
  return {stream.x, norm.forward(stream.x, context)};
}

Tensor value_of(const Stream& stream) {
  return stream.pending.defined() ? stream.x + stream.pending : stream.x;
}

struct Pre : Residual {
  explicit Pre(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, std::span<const SubLayer> f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const auto [x, normed] = sum_and_norm(stream, *norms_[i], context);
      stream = {x, f[i](normed), {}};  // x + f(N(x))
    }
  }
};

struct Post : Residual {
  explicit Post(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, std::span<const SubLayer> f, const NormContext& context) override {
    for (size_t i = 0; i < f.size(); ++i) {
      const Tensor x = value_of(stream);
      stream = {norms_[i]->add_forward(x, f[i](x), 1, context).norm, {}, {}};  // N(x + f(x))
    }
  }
};

struct Parallel : Residual {
  explicit Parallel(const ResidualOptions& o) : Residual(o.norm, o.channels, 1) {}
  void forward(Stream& stream, std::span<const SubLayer> f, const NormContext& context) override {
    const auto [x, normed] = sum_and_norm(stream, *norms_[0], context);
    Tensor sum = f[0](normed);
    for (const SubLayer& sublayer : f.subspan(1)) sum = sum + sublayer(normed);
    stream = {x, sum, {}};  // x + f1(N(x)) + f2(N(x))
  }
};

struct ResidualDual : Residual {
  explicit ResidualDual(const ResidualOptions& o) : Residual(o.norm, o.channels, o.sublayers) {}
  void forward(Stream& stream, std::span<const SubLayer> f, const NormContext& context) override {
    Tensor dual = stream.dual.defined() ? stream.dual : value_of(stream);
    for (size_t i = 0; i < f.size(); ++i) {
      const Tensor x = value_of(stream);
      const Tensor y = f[i](x);
      dual = dual + y;                                                     // r + f(x)
      stream = {norms_[i]->add_forward(x, y, 1, context).norm, {}, dual};  // N(x + f(x))
    }
  }
};

template <class T>
std::unique_ptr<Residual> make(const ResidualOptions& options) {
  return std::make_unique<T>(options);
}

Tensor finish_with_norm(const Stream& stream, Norm* norm, const NormContext& context) {
  return sum_and_norm(stream, *norm, context).norm;
}

Tensor finish_plain(const Stream& stream, Norm*, const NormContext&) { return value_of(stream); }

Tensor finish_dual(const Stream& stream, Norm* norm, const NormContext& context) {
  return stream.x + norm->forward(stream.dual, context);
}

// L blocks add 2L terms to the stream: this keeps its variance (Radford et al. 2019, section 2.3).
double one_over_root_of_terms(int64_t blocks) { return 1 / std::sqrt(2.0 * blocks); }
double one(int64_t) { return 1; }

Registry<Placement>& placements() {
  static Registry<Placement> registry(
      "placement",
      {
          {"pre", {make<Pre>, finish_with_norm, true, one_over_root_of_terms}},
          {"post", {make<Post>, finish_plain, false, one}},
          {"parallel", {make<Parallel>, finish_with_norm, true, one_over_root_of_terms}},
          {"residual-dual", {make<ResidualDual>, finish_dual, true, one}},
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
