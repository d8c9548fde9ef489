// Stands before torch's own header of this name, which declares all 3,000 operators. torch's
// headers of process groups, which include it, need these. If those of another version need more,
// the build takes torch's own (build.py).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
