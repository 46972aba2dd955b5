# Makes a project of its own from the CMakeLists.txt beside this file and examples/custom_layer.cpp.
# Installs the library to a folder with a space in its name, and builds and runs the project against
# it. Then configures the project with the library's source as a part of it, and with -DWHOLE=ON
# builds and runs that too, which compiles all of the library once more.
# cmake -DSOURCE_DIR= -DBUILD_DIR= -DCXX= -DGENERATOR= -DCONFIG= [-DWHOLE=ON] -P test.cmake

set(work "${BUILD_DIR}/tests/a package")
file(REMOVE_RECURSE "${work}/prefix" "${work}/installed" "${work}/moved" "${work}/project")
file(REMOVE "${work}/subdirectory/CMakeCache.txt")
file(COPY "${SOURCE_DIR}/tests/package/CMakeLists.txt" "${SOURCE_DIR}/examples/custom_layer.cpp"
     DESTINATION "${work}/project")
set(ENV{CXX} "${CXX}")

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

# configure(<folder> <cmake arguments>...)
function(configure folder)
  run(${CMAKE_COMMAND} -S "${work}/project" -B "${work}/${folder}"
      -G ${GENERATOR} ${ARGN})
endfunction()

function(build_and_run folder)
  run(${CMAKE_COMMAND} --build "${work}/${folder}" --target consumer --parallel 2)
  # One thread: on a busy machine two wait for each other.
  run(${CMAKE_COMMAND} -E env OMP_NUM_THREADS=1 "${work}/${folder}/consumer")
endfunction()

# The package may be moved after it was installed.
run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${work}/prefix")
file(RENAME "${work}/prefix" "${work}/moved")
configure(installed "-DCMAKE_PREFIX_PATH=${work}/moved")
build_and_run(installed)
message("find_package: ok")

configure(subdirectory "-DTAPEFORMER_SOURCE=${SOURCE_DIR}")
if(WHOLE)
  build_and_run(subdirectory)
endif()
message("add_subdirectory: ok")
