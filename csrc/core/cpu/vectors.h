#pragma once

#include "core/cpu/simd.h"
