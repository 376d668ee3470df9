# What pip puts into a wheel: extension modules with their stubs, Python files, the device catalogue.
set(modules _core)
if(TARGET _runtime)
  list(APPEND modules _runtime)
  # PyTorch lies beside Medley; where it does not (an environment that sees the system's packages), it is where it
  # was when the wheel was built.
  set_target_properties(_runtime PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib;${torch_folder}/lib")
endif()
install(TARGETS ${modules} LIBRARY DESTINATION medley COMPONENT wheel)
install(DIRECTORY ${CMAKE_BINARY_DIR}/package/medley DESTINATION . COMPONENT wheel
        FILES_MATCHING PATTERN "*.pyi")
install(DIRECTORY python/medley DESTINATION . COMPONENT wheel
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY data/devices DESTINATION medley/data COMPONENT wheel)
