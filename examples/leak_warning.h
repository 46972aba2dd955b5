// What a program says of a causal model whose norm shows it what it must not see.
#pragma once

#include <cstdio>
#include <string>

#include "layers/norm.h"

namespace tapeformer {

/// One line on standard error where the norm of a causal stack mixes while training: what it sees,
/// in use too or not, and `hint`. Nothing where it does not mix.
inline void warn_of_leak(const std::string& norm, Mixes training, Mixes in_use,
                         const char* hint = "") {
  if (training == Mixes::nothing) return;
  const bool samples = training == Mixes::samples, always = in_use != Mixes::nothing;
  std::fprintf(stderr,
               "warning: the norm '%s' takes its statistics over %s%s, so predictions see %s, "
               "which a causal model must not%s%s\n",
               norm.c_str(), samples ? "the tokens of the whole batch" : "the time steps",
               always ? "" : " in training",
               samples ? "later time steps and other samples" : "later time steps", hint,
               always ? "; decoding goes without the key-value cache" : "");
}

}  // namespace tapeformer
