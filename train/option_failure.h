// What a program says to a command line that it does not understand.
#pragma once

#include <string>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace tapeformer {

/// For CLI::App::failure_message(): what CLI11 says and, for an option that is unknown, a known one
/// of a similar name.
std::string option_failure(const CLI::App* app, const CLI::Error& error);

}  // namespace tapeformer
