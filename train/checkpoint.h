// Checkpoints: the state of a training run in a folder, complete at every moment.
//
//   model.safetensors            weights and buffers by name; in its metadata what the model is and
//                                the step
//   training-<step>.safetensors  the optimizer's state by name; in its metadata the TrainingState
//
// The training file of a step is on the disk before model.safetensors is renamed into place, and
// files of older steps go after that. So a run killed at any moment leaves a model.safetensors
// whose step has its training file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "layers/module.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"

namespace tapeformer {

/// What a model file says of itself, beside its tensors.
struct ModelFile {
  std::string config{};     // JSON: the model's configuration
  std::string tokenizer{};  // JSON: the tokenizer
  std::string run{};        // JSON: the options of the run that trains it
  int64_t step = 0;         // updates behind these weights
  // What its tensors say, when it was read:
  DType dtype = DType::f32;
  int64_t tensors = 0;
  double numbers = 0;  ///< in all tensors
};

/// What a run needs to go on, beside the weights and the optimizer's tensors.
struct TrainingState {
  int64_t step = 0;
  int64_t optimizer_steps = 0;  // save_checkpoint takes it from the optimizer
  uint64_t seed = 0;
  double best_loss = std::numeric_limits<double>::infinity();  // what evaluations are judged by
  int64_t best_step = 0;
  int64_t averaged = 0;  // the best weights are the mean of so many evaluations'; 0: of one
  int64_t evaluations_without_gain = 0;
  int64_t evaluations = 0;      // whose weights were kept for a mean
  double seconds = 0;           // that the run took so far
  bool evaluation_due = false;  // after this step; it was stopped
  LossScale loss_scale{};       // of a model in f16
};

/// Saves a checkpoint of step state.step, which replaces the folder's former one. Creates the
/// folder when it is missing.
void save_checkpoint(const std::filesystem::path& folder, const ModelFile& description,
                     Module& model, Optimizer& optimizer, const TrainingState& state);
/// Saves weights, buffers and description alone (best.safetensors).
void save_model(const std::filesystem::path& file, const ModelFile& description, Module& model);

bool has_checkpoint(const std::filesystem::path& folder);
/// Removes the checkpoint, model file first, and best.safetensors: for a run that overwrites
/// another.
void remove_checkpoint(const std::filesystem::path& folder);

/// The functions below take a checkpoint's folder or a model file.
ModelFile read_model_file(const std::filesystem::path& folder_or_file);
/// Fills every tensor of the model. Throws, leaving the model as it is, when names, shapes or
/// dtypes differ.
void load_model(const std::filesystem::path& folder_or_file, Module& model);
/// Fills the model with the mean of the files' weights, which are those of one model; of integers,
/// with the last file's.
void load_average(const std::vector<std::filesystem::path>& files, Module& model);
/// Restores the optimizer and returns the rest of the state that belongs to the folder's model
/// file.
TrainingState load_training(const std::filesystem::path& folder, Optimizer& optimizer);

}  // namespace tapeformer
