#include "medley/sim/simulate.h"
