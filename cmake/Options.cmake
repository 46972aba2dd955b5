# How this project compiles itself. The options live in the target tapeformer_options, which the
# library, the tests, the examples and the benchmarks use and which no other project sees.
include(CheckCXXCompilerFlag)

add_library(tapeformer_options INTERFACE)
# No -ffast-math: sums keep their order. These allow fused multiply-add and vector maths, no more.
target_compile_options(tapeformer_options INTERFACE -Wall -Wextra -ffp-contract=fast
                       -fno-math-errno -fno-trapping-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlapping copies in every "text" + std::string (its bug 105651).
  target_compile_options(tapeformer_options INTERFACE -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # It reports every loop marked simd that it compiles as a plain one, which is slower, not wrong.
  target_compile_options(tapeformer_options INTERFACE -Wno-pass-failed)
endif()
if(TAPEFORMER_WERROR)
  target_compile_options(tapeformer_options INTERFACE -Werror)
endif()

if(TAPEFORMER_ARCH)
  target_compile_options(tapeformer_options INTERFACE -march=${TAPEFORMER_ARCH})
elseif(TAPEFORMER_NATIVE)
  check_cxx_compiler_flag(-march=native TAPEFORMER_HAS_MARCH_NATIVE)
  if(TAPEFORMER_HAS_MARCH_NATIVE)
    target_compile_options(tapeformer_options INTERFACE -march=native)
  else()
    target_compile_options(tapeformer_options INTERFACE -mcpu=native)
  endif()
endif()

# Part of a project that chose no build type: still fast.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  target_compile_options(tapeformer_options INTERFACE -O3 -DNDEBUG)
endif()

# None of these is for nvcc.
get_target_property(options tapeformer_options INTERFACE_COMPILE_OPTIONS)
set_target_properties(tapeformer_options PROPERTIES
                      INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:${options}>")

# Everything that is linked to a sanitized library has to be sanitized too, so these do travel.
if(TAPEFORMER_SANITIZE)
  string(REPLACE "," ";" sanitizers "${TAPEFORMER_SANITIZE}")
  list(JOIN sanitizers "," joined)
  add_library(tapeformer_sanitize INTERFACE)
  target_compile_options(tapeformer_sanitize INTERFACE -fsanitize=${joined}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tapeformer_sanitize INTERFACE -fsanitize=${joined})
endif()
