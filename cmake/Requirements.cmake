# require(): find_package() that says which package to install when it finds nothing.

function(require_message name debian brew)
  set(cure "${name} is missing. Install it (Debian, Ubuntu: sudo apt-get install ${debian}; macOS: brew install ${brew})")
  if(ARGN)
    string(APPEND cure ", or configure with -D${ARGN}=OFF")
  endif()
  message(FATAL_ERROR "${cure}.")
endfunction()

# require(<package> <Debian package> <brew formula> [<option that does without>])
# A macro, so that what the package's files set is seen by the caller.
macro(require name debian brew)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    require_message(${name} ${debian} ${brew} ${ARGN})
  endif()
endmacro()
