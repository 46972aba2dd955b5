#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <vector>

#include "core/kernels.h"
#include "train/files.h"
#include "train/format.h"
#include "train/safetensors.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;

constexpr const char* model_name = "model.safetensors";
constexpr const char* format_name = "tapeformer";

std::string training_name(int64_t step) {
  return "training-" + std::to_string(step) + ".safetensors";
}

// True for training-<digits>.safetensors.
bool is_training_name(const std::string& name) {
  const std::string_view begin = "training-", end = ".safetensors";
  if (name.size() <= begin.size() + end.size()) return false;
  if (!name.starts_with(begin) || !name.ends_with(end)) return false;
  const std::string step = name.substr(begin.size(), name.size() - begin.size() - end.size());
  return step.find_first_not_of("0123456789") == std::string::npos;
}

void remove_training_files(const fs::path& folder, const std::string& except = {}) {
  std::error_code ignored;  // a file too many does no harm
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (is_training_name(name) && name != except) fs::remove(entry.path(), ignored);
  }
}

fs::path model_path(const fs::path& folder_or_file) {
  std::error_code ignored;
  return fs::is_directory(folder_or_file, ignored) ? folder_or_file / model_name : folder_or_file;
}

const std::string& text_of(const Safetensors& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  check(found != file.metadata().end(), "checkpoint: ", file.path().string(), " has no \"", key,
        "\" in its metadata; it was not written by this library, or for another purpose");
  return found->second;
}

template <class Number>
void read_number(const Safetensors& file, const std::string& key, Number& value) {
  const std::string& text = text_of(file, key);
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  check(result.ec == std::errc() && result.ptr == end, "checkpoint: ", file.path().string(), ": \"",
        key, "\" should be a number, found \"", text, '"');
}

NamedTensors tensors_of(Module& module) {
  NamedTensors result;
  for (const NamedTensor& entry : named_tensors(module))
    result.emplace_back(entry.name, entry.tensor);
  return result;
}

NamedTensors state_of(Optimizer& optimizer) {
  NamedTensors result;
  optimizer.visit_state(
      [&](const std::string& name, const Tensor& tensor) { result.emplace_back(name, tensor); });
  return result;
}

// The first few of many lines.
std::string some_of(const std::vector<std::string>& lines) {
  constexpr size_t limit = 5;
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), limit); ++i) text += "\n  " + lines[i];
  if (lines.size() > limit) text += "\n  and " + std::to_string(lines.size() - limit) + " more";
  return text;
}

// Fills the tensors from the file. Everything is compared before anything is written.
void load_tensors(const Safetensors& file, const NamedTensors& tensors, const char* cure) {
  std::vector<std::string> differences;
  std::set<std::string> known;
  for (const auto& [name, tensor] : tensors) {
    known.insert(name);
    std::ostringstream line;
    line.imbue(std::locale::classic());
    const Safetensors::Entry* entry = file.find(name);
    if (!entry) {
      line << "missing in the file: " << name << ' ' << tensor.shape();
    } else {
      const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      const char* dtype = safetensors_name(tensor.dtype());
      if (entry->shape == shape && entry->dtype == dtype) continue;
      line << name << ": expected " << dtype << ' ' << tensor.shape() << ", the file has "
           << entry->dtype << ' ';
      detail::write_part(line, entry->shape);
    }
    differences.push_back(line.str());
  }
  for (const Safetensors::Entry& entry : file.entries())
    if (!known.contains(entry.name)) differences.push_back("not expected: " + entry.name);
  check(differences.empty(), "checkpoint: ", file.path().string(), " ", cure, some_of(differences));
  for (const auto& [name, tensor] : tensors) file.read_into(name, tensor);
}

ModelFile description_of(const Safetensors& file) {
  const auto found = file.metadata().find("format");
  check(found != file.metadata().end() && found->second == format_name,
        "checkpoint: ", file.path().string(),
        " is a safetensors file, but no checkpoint of this library");
  ModelFile model;
  model.config = text_of(file, "config");
  model.tokenizer = text_of(file, "tokenizer");
  model.run = text_of(file, "run");
  read_number(file, "step", model.step);
  model.tensors = static_cast<int64_t>(file.entries().size());
  for (const Safetensors::Entry& entry : file.entries()) {
    for (const DType dtype : {DType::f64, DType::bf16, DType::f16})
      if (entry.dtype == safetensors_name(dtype)) model.dtype = dtype;
    double numbers = 1;
    for (const int64_t size : entry.shape) numbers *= static_cast<double>(size);
    model.numbers += numbers;
  }
  return model;
}

}  // namespace

void save_model(const fs::path& file, const ModelFile& description, Module& model) {
  save_safetensors(file, tensors_of(model),
                   {{"format", format_name},
                    {"config", description.config},
                    {"tokenizer", description.tokenizer},
                    {"run", description.run},
                    {"step", std::to_string(description.step)}});
}

void save_checkpoint(const fs::path& folder, const ModelFile& description, Module& model,
                     Optimizer& optimizer, const TrainingState& state) {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "checkpoint: cannot create the folder ", folder.string(), ": ", error.message());

  const std::string training = training_name(state.step);
  save_safetensors(folder / training, state_of(optimizer),
                   {{"step", std::to_string(state.step)},
                    {"optimizer_steps", std::to_string(optimizer.steps())},
                    {"seed", std::to_string(state.seed)},
                    {"best_loss", shortest(state.best_loss)},
                    {"best_step", std::to_string(state.best_step)},
                    {"evaluations_without_gain", std::to_string(state.evaluations_without_gain)},
                    {"loss_scale", shortest(state.loss_scale.value)},
                    {"loss_scale_good_steps", std::to_string(state.loss_scale.good_steps)},
                    {"skipped_steps", std::to_string(state.loss_scale.skipped)},
                    {"evaluations", std::to_string(state.evaluations)},
                    {"averaged", std::to_string(state.averaged)},
                    {"seconds", shortest(state.seconds)},
                    {"evaluation_due", state.evaluation_due ? "1" : "0"}});
  ModelFile at_this_step = description;
  at_this_step.step = state.step;
  save_model(folder / model_name, at_this_step, model);  // from here on this checkpoint counts
  remove_training_files(folder, training);
  remove_stray_temporaries(folder);
}

bool has_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / model_name, ignored);
}

void remove_checkpoint(const fs::path& folder) {
  std::error_code error;
  fs::remove(folder / model_name, error);
  check(!error, "checkpoint: cannot remove ", (folder / model_name).string(), ": ",
        error.message());
  fs::remove(folder / "best.safetensors", error);
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("recent-") && name.ends_with(".safetensors")) fs::remove(entry, error);
  }
  remove_training_files(folder);
  remove_stray_temporaries(folder);
}

ModelFile read_model_file(const fs::path& folder_or_file) {
  return description_of(Safetensors(model_path(folder_or_file)));
}

void load_model(const fs::path& folder_or_file, Module& model) {
  const Safetensors file(model_path(folder_or_file));
  load_tensors(file, tensors_of(model),
               "comes from another configuration than this model (same sizes, names and dtype are "
               "needed; the file holds its configuration):");
}

void load_average(const std::vector<fs::path>& files, Module& model) {
  check(!files.empty(), "checkpoint: no files to average");
  std::vector<Tensor> sums;
  for (const fs::path& file : files) {
    load_model(file, model);
    size_t i = 0;
    for (const NamedTensor& entry : named_tensors(model)) {
      if (!is_floating(entry.tensor.dtype())) continue;
      if (i == sums.size()) sums.push_back(Tensor::zeros(entry.tensor.shape(), DType::f64));
      const Tensor wide = sums[i].empty_like();
      wide.copy_from(entry.tensor);
      kernels::affine(wide, 1.0 / static_cast<double>(files.size()), 0.0,
                      Destination{sums[i++], true});
    }
  }
  size_t i = 0;
  for (const NamedTensor& entry : named_tensors(model))
    if (is_floating(entry.tensor.dtype())) entry.tensor.copy_from(sums[i++]);
}

TrainingState load_training(const fs::path& folder, Optimizer& optimizer) {
  const int64_t step = read_model_file(folder).step;
  const fs::path path = folder / training_name(step);
  check(fs::exists(path), "checkpoint: ", (folder / model_name).string(), " is of step ", step,
        ", but ", path.string(), " is missing: the model can be used, the run cannot go on");
  const Safetensors file(path);
  TrainingState state;
  read_number(file, "step", state.step);
  check(state.step == step, "checkpoint: ", path.string(), " holds step ", state.step,
        ", expected ", step);
  read_number(file, "optimizer_steps", state.optimizer_steps);
  read_number(file, "seed", state.seed);
  read_number(file, "best_loss", state.best_loss);
  read_number(file, "best_step", state.best_step);
  read_number(file, "evaluations_without_gain", state.evaluations_without_gain);
  if (file.metadata().contains("evaluations")) read_number(file, "evaluations", state.evaluations);
  if (file.metadata().contains("averaged")) read_number(file, "averaged", state.averaged);
  if (file.metadata().contains("seconds")) read_number(file, "seconds", state.seconds);
  if (file.metadata().contains("evaluation_due"))
    state.evaluation_due = text_of(file, "evaluation_due") == "1";
  if (file.metadata().contains("loss_scale")) {  // files of earlier versions have none
    read_number(file, "loss_scale", state.loss_scale.value);
    read_number(file, "loss_scale_good_steps", state.loss_scale.good_steps);
    read_number(file, "skipped_steps", state.loss_scale.skipped);
  }
  load_tensors(file, state_of(optimizer),
               "belongs to another optimizer or model (the same kind and sizes are needed):");
  optimizer.set_steps(state.optimizer_steps);
  return state;
}

}  // namespace tapeformer
