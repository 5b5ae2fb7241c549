"""Makes arrays, sorts one by another, and groups: long passes in order, gathers out of order."""
import sys

import numpy

count = int(sys.argv[1])
index = numpy.arange(count, dtype=numpy.uint64)
keys = index * numpy.uint64(2654435761) % numpy.uint64(count)
values = (index * numpy.uint64(40503) % numpy.uint64(10007)).astype(numpy.float64)
order = numpy.argsort(keys, kind="stable")
del index
ranked = values[order]
groups = (keys % numpy.uint64(1009)).astype(numpy.int64)
sums = numpy.bincount(groups, weights=values)
print(int(order[::4099].sum()), float(ranked[::17].sum()), float(sums.sum()), float(sums.max()))
