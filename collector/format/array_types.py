"""Types of arrays that many modules name."""

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
UInt32Array = NDArray[np.uint32]
UInt8Array = NDArray[np.uint8]
Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
