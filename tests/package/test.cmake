# Installs the library to a folder with a space in its name, builds the project beside this file
# against it, and again with the source as a part of that project, and runs both.
# cmake -DSOURCE_DIR= -DBUILD_DIR= -DCXX= -DGENERATOR= -DCONFIG= -P test.cmake

set(work "${BUILD_DIR}/tests/a package")
file(REMOVE_RECURSE "${work}/prefix" "${work}/installed" "${work}/moved")

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

# build_and_run(<folder> <cmake arguments>...)
function(build_and_run folder)
  run(${CMAKE_COMMAND} -S "${SOURCE_DIR}/tests/package" -B "${work}/${folder}" -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${CXX} ${ARGN})
  run(${CMAKE_COMMAND} --build "${work}/${folder}" --target consumer --parallel 2)
  run("${work}/${folder}/consumer")
endfunction()

# The package may be moved after it was installed.
run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${work}/prefix")
file(RENAME "${work}/prefix" "${work}/moved")
build_and_run(installed "-DCMAKE_PREFIX_PATH=${work}/moved")
message("find_package: ok")

# Not optimised and for any processor, which is fast to compile and a configuration of its own.
build_and_run(subdirectory "-DTAPEFORMER_SOURCE=${SOURCE_DIR}" -DCMAKE_BUILD_TYPE=Debug
              -DTAPEFORMER_NATIVE=OFF)
message("add_subdirectory: ok")
