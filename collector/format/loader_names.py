"""Names of values about the iterations over DataLoaders."""

from .names import BATCHES

LOADER_ORDER = f"{BATCHES}order/"
"""Prefix; the number of an iteration over a DataLoader that shuffles and the length of its dataset
follow, with a slash between: a hash of the indices of its first batch."""

LOADED_BY = f"{BATCHES}by"
"""The number of the iteration that hands out a batch, at the steps at which batches are sampled."""

NO_BATCH = f"{BATCHES}none"
"""An iteration hands out None. The value is 1."""

SHARED_OFFSET = f"{BATCHES}shared_offset/"
"""Prefix; the class of a dataset, its attribute and file.py:12 of its __getitem__ follow, each
after a slash: how often the offset of that open file has moved between two batches of a DataLoader
with two workers or more, which have it from the process that records this."""

SAMPLED_SUBSET = f"{BATCHES}subset/"
"""Prefix; the number of a distributed sampler that shuffles follows: a hash, below 2^52, of the
indices of the Subset that it shares out among all ranks of the job."""

LOADER_DATA = f"{BATCHES}data/"
"""Prefix; file.py:12 of a loop over a DataLoader or nothing follows: the number of the dataset that
an iteration goes through, as it begins. A list has none."""

SHARED_SAMPLES = f"{BATCHES}shared/"
"""Prefix; the numbers of two Subsets of one dataset and how many samples each has follow, each
after a slash: how many samples both have."""

SAMPLER_PADDING = f"{BATCHES}padding/"
"""Prefix; the length of a dataset follows: how many samples a DistributedSampler that an iteration
begins with hands out twice, so that each rank has as many."""
