// Backward of embedding bags that writes only the rows that have entries: with an optimizer, and of
// several tables. Sums are made in the order of embedding_bag.cu, which has the other kernels.
#include "embedding/update.cuh"

// Most rows have one entry, so one load of dy is in flight, beside those of the row and of its
// state. Four CTAs an SM spill 29 registers of float32, and have a third more rows in flight than
// three: the kernel takes 0.62 ms in place of 0.71 for Adagrad of 100 tables (H200). 16-bit rows
// would spill 88.
#define EXPORT_UPDATES(name, T, A, family)                                                         \
    EXPORT(family##_sorted_##name, sizeof(T) == 4 ? 4 : 3, BagArgs, sorted<Update, T, A, 1>(args)) \
    EXPORT(family##_sorted_argmax_##name, 3, BagArgs, sorted_argmax<Update, T, A, 1>(args))        \
    EXPORT(family##_long_rows_##name, 2, BagArgs, long_rows_of_kind<Update, T, A>(args))

FOR_EACH_FLOAT(EXPORT_UPDATES, embedding_update)
EXPORT(embedding_update_advance, 1, BagArgs, if (threadIdx.x == 0) advance(args.options))  // of an empty batch
