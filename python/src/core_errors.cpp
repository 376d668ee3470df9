#include "errors.h"

void init_errors(nanobind::module_&) { nanobind::register_exception_translator(medley::translate); }
