// Visits the elements of a tensor in logical (row-major) order, piece by piece, for any strides.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "numerics/fingerprint_kernel.h"
#include "numerics/tensor_memory.h"

namespace lanescope {

namespace {

// Dimensions of size 1 removed, contiguous neighbours merged.
struct Shape {
  c10::SmallVector<int64_t, 8> sizes, strides;

  explicit Shape(const c10::TensorImpl& tensor) {
    const c10::IntArrayRef all = tensor.sizes_default(), steps = tensor.strides_default();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] == 1) {
        continue;
      }
      if (!sizes.empty() && strides.back() == steps[i] * all[i]) {
        sizes.back() *= all[i];
        strides.back() = steps[i];
      } else {
        sizes.push_back(all[i]);
        strides.push_back(steps[i]);
      }
    }
  }

  bool flat() const { return sizes.empty() || (sizes.size() == 1 && strides[0] == 1); }
};

struct Sixteen {
  uint64_t halves[2];
};

// Calls `with` with a zero of the type that has as many bytes as an element.
template <typename With>
void for_item(int64_t item, With&& with) {
  switch (item) {
    case 1:
      return with(uint8_t{});
    case 2:
      return with(uint16_t{});
    case 4:
      return with(uint32_t{});
    case 8:
      return with(uint64_t{});
    default:
      return with(Sixteen{});
  }
}

// Elements of one dimension.
void gather(char* into, const char* from, int64_t stride, int64_t count, int64_t item) {
  if (stride == 1) {
    std::memcpy(into, from, static_cast<size_t>(count * item));
    return;
  }
  for_item(item, [&](auto zero) {
    constexpr auto SIZE = static_cast<int64_t>(sizeof zero);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(into + i * SIZE, from + i * stride * SIZE, sizeof zero);
    }
  });
}

// Two dimensions, the first with stride 1. Copies a few columns at a time, so that each cache line
// serves all its rows.
void gather(char* into, const char* from, int64_t rows, int64_t stride, int64_t columns,
            int64_t item) {
  constexpr int64_t BATCH_LINES =
      8;  // cache lines; more, a power of two apart, would evict each other
  for_item(item, [&](auto zero) {
    constexpr auto SIZE = static_cast<int64_t>(sizeof zero);
    for (int64_t first = 0; first < columns; first += BATCH_LINES) {
      const int64_t here = std::min(columns - first, BATCH_LINES);
      const char* source = from + first * stride * SIZE;
      for (int64_t i = 0; i < std::min(columns - first - here, BATCH_LINES); ++i) {
        __builtin_prefetch(source + (here + i) * stride * SIZE);
      }
      for (int64_t row = 0; row < rows; ++row) {
        char* target = into + (row * columns + first) * SIZE;
        for (int64_t i = 0; i < here; ++i) {
          std::memcpy(target + i * SIZE, source + (i * stride + row) * SIZE, sizeof zero);
        }
      }
    }
  });
}

// Calls `visit` with the offset of every index of the first `dimensions`, in elements.
template <typename Visit>
void each_offset(const Shape& shape, size_t dimensions, Visit&& visit) {
  c10::SmallVector<int64_t, 8> index(dimensions, 0);
  int64_t offset = 0;
  while (true) {
    visit(offset);
    size_t i = dimensions;
    for (; i != 0; --i) {
      offset += shape.strides[i - 1];
      if (++index[i - 1] != shape.sizes[i - 1]) {
        break;
      }
      index[i - 1] = 0;
      offset -= shape.strides[i - 1] * shape.sizes[i - 1];
    }
    if (i == 0) {
      return;
    }
  }
}

// Buffers elements and passes them on in whole blocks, the rest at the end.
template <typename Read>
class Blocks {
 public:
  Blocks(char* buffer, int64_t item, int64_t count, Read& read)
      : buffer_(buffer), item_(item), missing_(count), read_(read) {}

  char* end() { return buffer_ + held_ * item_; }
  int64_t held() const { return held_; }
  void filled(int64_t elements) {
    held_ += elements;
    missing_ -= elements;
    const int64_t whole = missing_ == 0 ? held_ : held_ / BLOCK * BLOCK;
    if (whole != 0) {
      read_(buffer_, whole);
      held_ -= whole;
      std::memmove(buffer_, buffer_ + whole * item_, static_cast<size_t>(held_ * item_));
    }
  }

 private:
  char* buffer_;
  int64_t item_, held_ = 0, missing_;
  Read& read_;
};

// Row by row.
template <typename Read>
void each_row(const Shape& shape, const char* data, int64_t item, int64_t count, Read& read) {
  constexpr int64_t BYTES = 16 * BLOCK;
  alignas(64) char buffer[BYTES];
  const int64_t room = BYTES / item;
  const size_t last = shape.sizes.size() - 1;
  Blocks<Read> blocks(buffer, item, count, read);
  each_offset(shape, last, [&](int64_t row) {
    for (int64_t first = 0; first < shape.sizes[last];) {
      const int64_t here = std::min(shape.sizes[last] - first, room - blocks.held());
      gather(blocks.end(), data + (row + first * shape.strides[last]) * item, shape.strides[last],
             here, item);
      blocks.filled(here);
      first += here;
    }
  });
}

// Reads several adjacent rows at once, so that each cache line is read once for all of them. False
// if rows are too long for that, or memory is short.
template <typename Read>
bool each_tile(const Shape& shape, const char* data, int64_t item, int64_t count, Read& read) {
  constexpr int64_t LINE = 64, SMALL = 1 << 20, LARGE = 1 << 23;
  if (shape.sizes.size() < 2) {
    return false;
  }
  const size_t first = shape.sizes.size() - 2;
  const int64_t rows = shape.sizes[first], columns = shape.sizes[first + 1];
  const int64_t room = std::clamp(count * item / 8, SMALL, LARGE);
  const int64_t at_once = std::min({rows, LINE / item, room / (columns * item)});
  if (shape.strides[first] != 1 || at_once < 2) {
    return false;
  }
  const auto bytes = static_cast<size_t>((at_once * columns + BLOCK) * item);
  const std::unique_ptr<char[]> buffer(new (std::nothrow) char[bytes]);
  if (buffer == nullptr) {
    return false;
  }
  Blocks<Read> blocks(buffer.get(), item, count, read);
  each_offset(shape, first, [&](int64_t offset) {
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t here = std::min(rows - row, at_once);
      gather(blocks.end(), data + (offset + row) * item, here, shape.strides[first + 1], columns,
             item);
      blocks.filled(here * columns);
    }
  });
  return true;
}

// Passes contiguous tensors on as they are. All parts but the last are whole blocks.
template <typename Read>
void each_part(const c10::TensorImpl& tensor, Read&& read) {
  const int64_t count = tensor.numel();
  if (count == 0) {
    return;
  }
  const auto item = static_cast<int64_t>(tensor.dtype().itemsize());
  const char* data = first_of(tensor);
  const Shape shape(tensor);
  if (shape.flat()) {
    read(data, count);
  } else if (!each_tile(shape, data, item, count, read)) {
    each_row(shape, data, item, count, read);
  }
}

}  // namespace

}  // namespace lanescope
