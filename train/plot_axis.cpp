#include "train/plot_axis.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.h"
#include "train/format.h"

namespace tapeformer {
namespace {

// The smallest of 1, 2, 5, 10 times a power of ten that is not below x.
double nice_step(double x) {
  const double power = std::pow(10, std::floor(std::log10(x)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= x * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

std::vector<double> multiples(double low, double high, double step) {
  std::vector<double> result;
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  for (double i = first; i <= last && result.size() < 100; ++i) result.push_back(i * step);
  return result;
}

// 1.5x10^-4, with the signs for times and for raised digits.
std::string scientific(double value) {
  static const char* const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific, 4);
  const std::string all(text, end.ptr);
  const size_t e = all.find('e');
  std::string mantissa = all.substr(0, e);
  mantissa.erase(mantissa.find_last_not_of('0') + 1);
  if (mantissa.ends_with('.')) mantissa.pop_back();
  std::string power = "10";
  for (const char c : std::to_string(std::stoi(all.substr(e + 1))))
    power += c == '-' ? "⁻" : digits[c - '0'];
  if (mantissa == "1") return power;
  return (mantissa == "-1" ? "-" : mantissa + "×") + power;
}

// With as many decimals as the leading digit of `unit` has.
std::string decimal(double value, double unit) {
  const int decimals = static_cast<int>(-std::floor(std::log10(unit) + 1e-9));
  return decimals > 0 ? fixed(value, decimals) : grouped(std::llround(value));
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  check(low < high && count > 0, "nice_ticks: needs low < high and a positive count, got ", low,
        ", ", high, ", ", count);
  return multiples(low, high, nice_step((high - low) / count));
}

bool Axis::shows(double value) const {
  return std::isfinite(value) && (scale_ == Scale::linear || value > 0);
}

void Axis::include(double value) {
  if (!shows(value)) return;
  value = bounded(value);
  whole_numbers_ = whole_numbers_ && value == std::floor(value);
  const bool first = empty();
  low_ = first ? value : std::min(low_, value);
  high_ = first ? value : std::max(high_, value);
}

void Axis::settle(int count, bool rounded) {
  if (empty()) {
    low_ = scale_ == Scale::linear ? 0 : 0.1;
    high_ = 1;
  }
  if (scale_ == Scale::linear)
    settle_linear(count, rounded);
  else
    settle_logarithmic(count, rounded);
}

void Axis::settle_linear(int count, bool rounded) {
  const double size = std::max(std::abs(low_), std::abs(high_));
  if (size < 1e-300) {
    high_ = 1;
  } else if (high_ - low_ <= 1e-9 * size) {  // one value: in the middle
    low_ -= size / 2;
    high_ += size / 2;
  }
  if (rounded && low_ > 0 && low_ < 0.3 * high_) low_ = 0;
  step_ = nice_step((high_ - low_) / count);
  if (whole_numbers_) step_ = std::max(step_, 1.0);
  if (rounded) {
    low_ = std::floor(low_ / step_ + 1e-9) * step_;
    high_ = std::ceil(high_ / step_ - 1e-9) * step_;
  }
  ticks_ = multiples(low_, high_, step_);
}

// Ticks at powers of ten; also at 2 and 5 times these when the powers alone are too few.
void Axis::settle_logarithmic(int count, bool rounded) {
  const double decades = std::log10(high_) - std::log10(low_);
  const bool fine = 3 * decades <= count;
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / count)));
  const int first = static_cast<int>(std::floor(std::log10(low_) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(high_) - 1e-9));
  std::vector<double> candidates;
  for (int exponent = first; exponent <= last + stride; exponent += stride)
    for (const double factor : {1.0, 2.0, 5.0})
      if (fine || factor == 1) candidates.push_back(factor * std::pow(10, exponent));
  // The largest candidate at or below the range, and the smallest one above it.
  const auto above = [&](double value) {
    return std::find_if(candidates.begin(), candidates.end(),
                        [&](double tick) { return tick > value * (1 + 1e-9); });
  };
  const auto begin = std::max(above(low_) - 1, candidates.begin());
  auto end = std::min(above(high_ * (1 - 2e-9)) + 1, candidates.end());
  if (end - begin < 2) end = std::min(begin + 2, candidates.end());
  ticks_.assign(begin, end);
  if (rounded) {
    low_ = ticks_.front();
    high_ = ticks_.back();
  }
}

double Axis::position(double value) const {
  value = bounded(value);
  if (scale_ == Scale::linear) return (value - low_) / (high_ - low_);
  return (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_));
}

double Axis::bounded(double value) const {
  return std::clamp(value, scale_ == Scale::linear ? -1e300 : 1e-300, 1e300);
}

std::string Axis::label(double tick) const {
  if (scale_ == Scale::log10)
    return low_ < 9e-4 || high_ > 9.9e5 ? scientific(tick) : decimal(tick, tick);
  const double largest = std::max(std::abs(ticks_.front()), std::abs(ticks_.back()));
  if (std::abs(tick) < step_ / 2) return "0";
  return largest < 9e-4 || largest >= 1e7 ? scientific(tick) : decimal(tick, step_);
}

}  // namespace tapeformer
