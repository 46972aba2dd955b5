// train_gpt while its disk fills, its rights end, its folder moves or its memory does not suffice:
// a message, and the newest checkpoint goes on.
#include <csignal>

#include "tests/desk.h"

using namespace tapeformer;
namespace fs = std::filesystem;

namespace {

void resumes(const Desk& desk, const std::string& folder) {
  REQUIRE(has_checkpoint(desk / folder));
  const int64_t step = read_model_file(desk / folder).step;
  const Outcome outcome =
      desk.run(TRAIN_GPT " --resume " + folder + " --stop-after " + std::to_string(step + 1));
  CAPTURE(outcome.err);
  CHECK(outcome.status == 0);
  CHECK(read_model_file(desk / folder).step == step + 1);
}

std::string long_run(const std::string& folder = "run") {
  return TRAIN_GPT " --data text.txt --steps 100000 --save-every 1 --out " + folder + Desk::small();
}

// How a command gives up the rights of root, which may write anywhere; empty: no way.
std::string without_rights() {
  if (geteuid() != 0) return " ";
  const std::string prefix = "setpriv --reuid 65534 --regid 65534 --clear-groups ";
  return std::system((prefix + TRAIN_GPT " --help >/dev/null 2>&1").c_str()) == 0 ? prefix : "";
}

}  // namespace

TEST_CASE("a_file_that_may_not_grow_ends_the_run_and_its_checkpoint_goes_on") {
  const Desk desk;
  const Outcome outcome = desk.run("ulimit -f 64; " + long_run());  // of 512 or 1,024 bytes
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("metrics.jsonl: File too large"));
  resumes(desk, "run");
}

TEST_CASE("a_full_disk_ends_the_run_and_its_checkpoint_goes_on") {
  const Desk desk;
  fs::create_directory(desk / "disk");
  // A disk that this command alone sees, and only root may make.
  write_bytes(desk / "disk.sh", "mount -t tmpfs -o size=128k none disk || exit 99\n" +
                                    long_run("disk/run") +
                                    "\nstatus=$?\ncp -r disk/run run\nexit $status\n");
  const Outcome outcome = desk.run("unshare -m sh disk.sh");
  if (outcome.status == 99 || !fs::exists(desk / "run")) return;
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("No space left on device"));
  resumes(desk, "run");
}

TEST_CASE("a_folder_that_may_not_be_written_to_is_refused_before_anything_is_done") {
  const Desk desk;
  const std::string prefix = without_rights();
  if (prefix.empty()) return;
  fs::permissions(desk.path, fs::perms(0555));
  fs::create_directory(desk / "closed");
  fs::permissions(desk / "closed", fs::perms(0555));
  for (const std::string folder : {"closed", "closed/new"}) {
    const std::string command = prefix + TRAIN_GPT " --data text.txt --steps 1 --out " + folder;
    const Outcome outcome = desk.run("{ " + command + Desk::small() + "; }");
    CHECK(outcome.status == 1);
    CHECK_THAT(outcome.err, ContainsSubstring("Permission denied") && ContainsSubstring(folder));
  }
  fs::permissions(desk.path, fs::perms(0755));
}

TEST_CASE("rights_that_end_during_a_run_end_it_and_its_checkpoint_goes_on") {
  const Desk desk;
  const std::string prefix = without_rights();
  if (prefix.empty()) return;
  fs::permissions(desk.path, fs::perms(0777));
  const pid_t child = start(desk, prefix + long_run());
  wait_for(desk / "run" / "best.safetensors");
  fs::permissions(desk / "run", fs::perms(0555));
  CHECK(status_of(child) == 1);
  CHECK_THAT(content(desk / "err"), ContainsSubstring("run/") && ContainsSubstring("Permission"));
  fs::permissions(desk / "run", fs::perms(0755));
  resumes(desk, "run");
}

TEST_CASE("a_run_whose_folder_is_moved_goes_on_in_a_new_one") {
  const Desk desk;
  const pid_t child = start(desk, long_run());
  wait_for(desk / "run" / "best.safetensors");
  fs::rename(desk / "run", desk / "moved");
  wait_for(desk / "run" / "model.safetensors");
  kill(child, SIGINT);
  const int status = status_of(child);
  CAPTURE(content(desk / "err"));
  CHECK(status == 0);
  CHECK(!read_metrics(desk / "run" / "metrics.jsonl").empty());
  resumes(desk, "moved");
  resumes(desk, "run");
}

TEST_CASE("memory_that_does_not_suffice_is_refused_with_the_numbers_and_the_options") {
  const Desk desk;
  // 1 GB of addresses, for a batch that needs some 8 GB.
  const Outcome outcome = desk.run("ulimit -v 1000000; " TRAIN_GPT " --data text.txt --out run" +
                                   Desk::small() + " --batch 60000 --channels 64 --context 64");
  CAPTURE(outcome.err);
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("out of memory: asked for ") &&
                              ContainsSubstring(" in use and ") &&
                              ContainsSubstring("lower batch"));
}
