#include "autograd/remember.h"

namespace tapeformer {
namespace {

thread_local Remembering* current = nullptr;

struct Inside {  // makes a scope the current one for a while
  explicit Inside(Remembering* scope) : before(current) { current = scope; }
  ~Inside() { current = before; }
  Remembering* const before;
};

}  // namespace

Remembering::Remembering(Remembered& values, Run run)
    : values_(values), run_(run), outer_(current) {
  current = this;
}
Remembering::~Remembering() { current = outer_; }

Tensor remember(const std::function<Tensor()>& f) {
  Remembering* scope = current;
  if (!scope) return f();
  if (scope->run_ == Remembering::Run::first) {
    const Inside outer(scope->outer_);  // which may be running for the second time
    scope->values_.push_back(remember(f));
    return scope->values_.back();
  }
  check(scope->next_ < scope->values_.size(),
        "recompute: the function did more in its second run than in its first; it must do the same "
        "each time");
  return scope->values_[scope->next_++];
}

}  // namespace tapeformer
