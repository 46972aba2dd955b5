// The example programs, run as a shell runs them, in a folder of their own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "data/stories.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "train/checkpoint.h"
#include "train/format.h"
#include "train/metrics.h"

// As a shell spells them: their path may hold spaces.
#define TRAIN_GPT "'" TAPEFORMER_TRAIN_GPT "'"
#define GENERATE_TEXT "'" TAPEFORMER_GENERATE "'"
#define NORM_LAB "'" TAPEFORMER_NORM_LAB "'"

namespace tapeformer {

struct Outcome {
  int status;
  std::string out, err;  // standard output and standard error
};

inline std::string quoted(const std::filesystem::path& path) { return "'" + path.string() + "'"; }

// A folder with a small text, and programs that run in it.
struct Desk : TemporaryFolder {
  Desk() { write_bytes(*this / "text.txt", generate_stories(1, 4000)); }

  Outcome run(const std::string& command) const {
    const std::string line = "cd " + quoted(path) + " && " + command + " >out 2>err </dev/null";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(*this / "out"),
            content(*this / "err")};
  }
  static std::string small() {
    return " --layers 1 --heads 2 --channels 8 --context 8 --batch 2 --eval-every 2"
           " --eval-batches 1 --warmup 2 --threads 1";
  }
  Outcome train(const std::string& options) const {
    return run(TRAIN_GPT " --data text.txt" + small() + " " + options);
  }
  Outcome generate(const std::string& options) const {
    return run(GENERATE_TEXT " --checkpoint run " + options);
  }
  // The training losses and the last line: what an option has to move.
  std::string trace(const std::string& options) const {
    const Outcome outcome = train("--overwrite --out trace --steps 5 " + options);
    CAPTURE(outcome.err);
    CHECK(outcome.status == 0);
    std::string text = last_line(outcome.out);
    for (const Metrics& m : read_metrics(*this / "trace" / "metrics.jsonl")) {
      text += " " + std::to_string(m.step);
      for (const double number :
           {m.train_loss.value_or(0), m.val_loss.value_or(0), m.lr.value_or(0)})
        text += "/" + shortest(number);
    }
    return text;
  }
  // What follows `label` in its line.
  static std::string after(const std::string& text, const std::string& label) {
    const size_t at = text.find(label);
    CAPTURE(text);
    REQUIRE(at != std::string::npos);
    const size_t begin = at + label.size();
    return text.substr(begin, text.find('\n', begin) - begin);
  }
  static std::string last_line(std::string text) {
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  }
};

// Starts a command in the desk's folder, in a process of its own.
inline pid_t start(const Desk& desk, const std::string& command) {
  const pid_t child = fork();
  if (child != 0) return child;
  const std::string line = "exec " + command + " >out 2>err </dev/null";
  if (chdir(desk.path.c_str()) == 0) execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
  _exit(127);
}

inline void wait_for(const std::filesystem::path& file) {
  for (int i = 0; i < 1000 && !std::filesystem::exists(file); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(std::filesystem::exists(file));
}

// The exit status of a process once it ends; -1 where a signal ended it.
inline int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace tapeformer
