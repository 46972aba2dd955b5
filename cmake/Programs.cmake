# add_programs(): makes a program of every .cpp file in the current folder, named after the file.

function(add_programs)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE tapeformer tapeformer_options ${ARGN})
    set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  endforeach()
endfunction()
