// What scripts/test.sh says at its end, with another program in the place of cmake.
#include <signal.h>

#include "tests/desk.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

struct ScriptDesk : Desk {
  explicit ScriptDesk(const std::string& cmake) {
    fs::copy(TAPEFORMER_SOURCE_DIR "/scripts", *this / "scripts");
    fs::create_directory(*this / "bin");
    write_bytes(*this / "bin" / "cmake", "#!/bin/sh\n" + cmake + "\n");
    fs::permissions(*this / "bin" / "cmake", fs::perms::owner_all);
  }
  static constexpr const char* test = "env PATH=\"$PWD/bin:$PATH\" scripts/test.sh --no-install";
};

}  // namespace

TEST_CASE("a_test_script_that_a_signal_stops_says_so_and_counts_nothing") {
  const ScriptDesk desk("echo $$ >new && mv new configuring && exec sleep 60");
  const pid_t script = start(desk, desk.test);
  wait_for(desk / "configuring");
  kill(script, SIGTERM);
  CHECK(status_of(script) != 0);
  kill(std::stoi(content(desk / "configuring")), SIGTERM);
  CHECK(content(desk / "out").empty());
  CHECK_THAT(content(desk / "err"), ContainsSubstring("Stopped before all tests had run."));
}

TEST_CASE("a_test_script_that_cannot_build_counts_a_failure") {
  const ScriptDesk desk("exit 1");
  const Outcome outcome = desk.run(desk.test);
  CHECK(outcome.status == 1);
  CHECK(outcome.out == "0 passed, 1 failed\n");
}
