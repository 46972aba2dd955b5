// How many CPU threads the kernels use.
#pragma once

namespace tapeformer {

/// The number that kernels use on the calling thread: what set_num_threads() set; otherwise
/// OMP_NUM_THREADS; otherwise the cores that the affinity mask and the cgroup's quota allow.
int num_threads();
/// For all threads of the process. Throws unless 1 <= n <= 1024.
void set_num_threads(int n);
/// The cores that the affinity mask and the cgroup's quota allow.
int available_cores();

}  // namespace tapeformer
