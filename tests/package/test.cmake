# Makes a project of its own from the files beside this one and examples/custom_layer.cpp. Installs
# the library to a folder with a space in its name, and builds and runs the project against it; its
# norms must be in the lab's experiments and grids. Then configures the project with the library's
# source as a part of it, and with -DWHOLE=ON builds and runs that too, which compiles all of the
# library once more.
# cmake -DSOURCE_DIR= -DBUILD_DIR= -DCXX= -DGENERATOR= -DCONFIG= [-DWHOLE=ON] -P test.cmake

set(work "${BUILD_DIR}/tests/a package")
file(REMOVE_RECURSE "${work}/prefix" "${work}/installed" "${work}/moved" "${work}/project")
file(REMOVE "${work}/subdirectory/CMakeCache.txt")
file(COPY "${SOURCE_DIR}/tests/package/CMakeLists.txt"
     "${SOURCE_DIR}/tests/package/own_norm_lab.cpp" "${SOURCE_DIR}/examples/custom_layer.cpp"
     DESTINATION "${work}/project")
set(ENV{CXX} "${CXX}")

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Fails unless the last output matches each of the patterns.
function(expect)
  foreach(pattern IN LISTS ARGN)
    if(NOT output MATCHES "${pattern}")
      message(FATAL_ERROR "nothing matches '${pattern}' in\n${output}")
    endif()
  endforeach()
endfunction()

# configure(<folder> <cmake arguments>...)
function(configure folder)
  run(${CMAKE_COMMAND} -S "${work}/project" -B "${work}/${folder}"
      -G ${GENERATOR} ${ARGN})
endfunction()

function(build_and_run folder)
  run(${CMAKE_COMMAND} --build "${work}/${folder}" --target consumer own_norm_lab --parallel 2)
  # One thread: on a busy machine two wait for each other.
  set(ENV{OMP_NUM_THREADS} 1)
  run("${work}/${folder}/consumer")
  set(lab "${work}/${folder}/own_norm_lab")
  run("${lab}" leak --quick --out "${work}/${folder}/lab_runs")
  # Other tokens reach through the one, and through the other while it trains.
  expect("time-centred, 16 samples: earlier logits[ \n]+move by: 0\\.[0-9]*[1-9]"
         "powernorm-short, 16 samples:[ \n]+earlier logits[ \n]+move by: 0\\.[0-9]*[1-9]")
  # In the place of BatchNorm what mixes no samples: what is said of accumulation holds of it.
  run("${lab}" accumulation --quick --replace batchnorm=time-centred
      --out "${work}/${folder}/replaced")
  expect("VERDICT +holds" "batchnorm[ \n]+stands[ \n]+for[ \n]+time-centred")
  run("${lab}" --grid norms=time-centred,powernorm-short,depth=1,batch=2,steps=2 --quick
      --out "${work}/${folder}/grid")
  expect("\ntime-centred +pre [^\n]*1" "\npowernorm-short +pre [^\n]*1")
endfunction()

# The package may be moved after it was installed.
run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${work}/prefix")
file(RENAME "${work}/prefix" "${work}/moved")
configure(installed "-DCMAKE_PREFIX_PATH=${work}/moved")
build_and_run(installed)
message("find_package: ok")

configure(subdirectory "-DTAPEFORMER_SOURCE=${SOURCE_DIR}" -DTAPEFORMER_CUDA=OFF)
if(WHOLE)
  build_and_run(subdirectory)
endif()
message("add_subdirectory: ok")
