# Finds OpenBLAS itself, never the generic libblas, as the target OpenBLAS::OpenBLAS. Looks for a
# cblas.h that lies beside openblas_config.h, because the plain cblas.h may belong to another BLAS.

# Homebrew keeps OpenBLAS apart from /usr/local.
set(hints /opt/homebrew/opt/openblas /usr/local/opt/openblas)

find_path(OpenBLAS_INCLUDE_DIR NAMES openblas_config.h HINTS ${hints}
          PATH_SUFFIXES openblas-pthread openblas-openmp openblas)
# Where a system names the builds apart, openblas alone is the serial one, which will not do.
find_library(OpenBLAS_LIBRARY NAMES openblasp openblaso openblas HINTS ${hints}
             PATH_SUFFIXES openblas-pthread openblas-openmp openblas)
mark_as_advanced(OpenBLAS_INCLUDE_DIR OpenBLAS_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBLAS REQUIRED_VARS OpenBLAS_LIBRARY OpenBLAS_INCLUDE_DIR)

if(OpenBLAS_FOUND AND NOT TARGET OpenBLAS::OpenBLAS)
  add_library(OpenBLAS::OpenBLAS UNKNOWN IMPORTED)
  set_target_properties(OpenBLAS::OpenBLAS PROPERTIES
                        IMPORTED_LOCATION "${OpenBLAS_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${OpenBLAS_INCLUDE_DIR}")
endif()
