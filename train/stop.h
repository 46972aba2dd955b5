// Ending long work early, where the caller asks for it.
#pragma once

#include <functional>

#include "core/check.h"

namespace tapeformer {

/// Asked again and again during long work: is it to end? Empty: no.
using StopRequest = std::function<bool()>;

/// Thrown by work that its StopRequest ended: there is no result.
struct Stopped : Error {
  Stopped() : Error("stopped before its end, as it was asked to") {}
};

inline void end_where_asked(const StopRequest& stop) {
  if (stop && stop()) throw Stopped();
}

}  // namespace tapeformer
