// The norm lab as a program: a main() that registers norms or experiments of its own and calls this
// has them in every list and grid; the norms in the experiment `leak`, which takes all, and by
// --replace in any other, in the place of one that it names.
#pragma once

namespace tapeformer::lab {

/// Reads the command line, runs experiments or a grid, prints cards. Returns the exit status.
int norm_lab_main(int argc, char** argv);

}  // namespace tapeformer::lab
