# What pip puts into a wheel: extension modules with their stubs, the program of the core, Python files, the device catalogue.
set(modules _core)
if(TARGET _runtime)
  list(APPEND modules _runtime)
  # PyTorch lies beside Medley; where it does not (an environment that sees the system's packages), it is where it
  # was when the wheel was built.
  set_target_properties(_runtime PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib;${torch_folder}/lib")
endif()
install(TARGETS ${modules} LIBRARY DESTINATION medley COMPONENT wheel)
install(TARGETS medley RUNTIME DESTINATION medley/bin COMPONENT wheel)
foreach(module IN LISTS modules)  # not the folder: it may keep the stub of a module that an earlier build had
  install(FILES ${CMAKE_BINARY_DIR}/package/medley/${module}.pyi DESTINATION medley COMPONENT wheel)
endforeach()
install(DIRECTORY python/medley python/medley_extras DESTINATION . COMPONENT wheel
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY data/devices DESTINATION medley/data COMPONENT wheel)
