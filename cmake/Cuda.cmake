# Whether the CUDA backend is built: sets TAPEFORMER_HAS_CUDA, and enables the language. AUTO takes an
# nvcc that is here and new enough, and otherwise builds for the CPU.
set(oldest_nvcc 12.0)
set(TAPEFORMER_HAS_CUDA OFF)

if(NOT TAPEFORMER_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TAPEFORMER_CUDA is AUTO, ON or OFF, not ${TAPEFORMER_CUDA}.")
elseif(NOT TAPEFORMER_CUDA STREQUAL "OFF" AND NOT TAPEFORMER_SANITIZE)
  find_program(TAPEFORMER_NVCC nvcc PATHS /usr/local/cuda/bin DOC "The CUDA compiler")
  mark_as_advanced(TAPEFORMER_NVCC)
  set(why "there is no nvcc; install the CUDA toolkit, or add its bin folder to PATH")
  if(TAPEFORMER_NVCC)
    execute_process(COMMAND ${TAPEFORMER_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${version}")
    set(why "")
    if(NOT version OR CMAKE_MATCH_1 VERSION_LESS oldest_nvcc)
      set(why "${TAPEFORMER_NVCC} is older than CUDA ${oldest_nvcc}; update the CUDA toolkit")
    endif()
  endif()
  if(NOT why)
    set(TAPEFORMER_HAS_CUDA ON)
  elseif(TAPEFORMER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TAPEFORMER_CUDA=ON: ${why}.")
  else()
    message(STATUS "Building for the CPU only: ${why}.")
  endif()
endif()

if(TAPEFORMER_HAS_CUDA)
  # Ampere and Hopper, and by their PTX what comes after; `native` would fail without a GPU.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
  set(CMAKE_CUDA_COMPILER ${TAPEFORMER_NVCC})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake before 3.27 compiles as C++17 when asked for 20, and says nothing.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()

# use_nvcc(<target>): how the target's kernels are compiled.
function(use_nvcc target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xptxas=-warn-spills;-Werror=all-warnings>")
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                        CUDA_EXTENSIONS OFF CUDA_RUNTIME_LIBRARY Static
                        CUDA_RESOLVE_DEVICE_SYMBOLS OFF)
endfunction()

# use_cuda(<library>): adds the backend.
function(use_cuda library)
  file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/core/cuda/*.cu)
  target_sources(${library} PRIVATE ${kernel_sources})
  # By name: a project that uses the library need not have enabled CUDA, which would bring it.
  target_link_libraries(${library} PRIVATE CUDA::cudart_static)
  # Public: who calls a kernel needs its symbol, see TAPEFORMER_CUDA_PART.
  target_compile_definitions(${library} PUBLIC TAPEFORMER_CUDA)
  use_nvcc(${library})
endfunction()
