// What the emulator says when a kernel or its caller breaks a rule: one message, then the end of
// the program, as a GPU would end it, only with a reason.
#pragma once

namespace cuda_emulator {

/// Prints "CUDA emulator: <message>", with the kernel, block and thread that are running, if any,
/// and aborts.
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* format, ...);

/// From now on a forbidden access to memory ends with such a message too. Called again and again,
/// because test frameworks put handlers of their own in its place.
void watch_memory();

}  // namespace cuda_emulator
