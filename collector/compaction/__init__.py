"""Turns journals into Parquet files: decode, merge, seal, place on one axis."""
