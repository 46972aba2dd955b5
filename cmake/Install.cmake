# Installs the library, its public headers and the package that find_package(tapeformer) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tapeformer)

install(TARGETS tapeformer EXPORT tapeformerTargets
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapeformer)
# The backends' own headers (core/cpu) stay behind: the seam, core/kernels.h, is what is public.
foreach(layer IN LISTS tapeformer_layers)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${layer}/*.h)
  install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapeformer/${layer})
endforeach()

install(EXPORT tapeformerTargets NAMESPACE tapeformer:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tapeformerConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/tapeformerConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tapeformerConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tapeformerConfig.cmake
              ${PROJECT_BINARY_DIR}/tapeformerConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindOpenBLAS.cmake
              ${CMAKE_CURRENT_LIST_DIR}/Findutf8proc.cmake
        DESTINATION ${package_dir})
