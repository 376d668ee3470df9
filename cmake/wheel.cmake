# The content of a wheel: extension modules with their stubs, the core's program, Python files, the
# device catalogue.
set(modules _core)
if(TARGET _runtime)
  list(APPEND modules _runtime)
  # PyTorch is next to Medley, or at its path at build time if the environment sees the system's.
  set_target_properties(_runtime PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib;${torch_folder}/lib")
endif()
install(TARGETS ${modules} LIBRARY DESTINATION medley COMPONENT wheel)
install(TARGETS medley RUNTIME DESTINATION medley/bin COMPONENT wheel)
foreach(module IN LISTS modules)  # not the folder, which may have stale stubs
  install(FILES ${CMAKE_BINARY_DIR}/package/medley/${module}.pyi DESTINATION medley COMPONENT wheel)
endforeach()
install(DIRECTORY python/medley python/medley_extras DESTINATION . COMPONENT wheel
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY data/devices DESTINATION medley/data COMPONENT wheel)
