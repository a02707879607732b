/* Stores rows of sums. Headers of loops include this one, once per vector width. */

/* Stores a row of float64 in the dtype and with the strides of the output. */
TARGET static void AT(store_row)(const sw_bag_out *out, long row, const double *restrict sum) {
  long n = out->columns, step = out->column;
  char *to = row_of(out, row);
  if (out->narrow == DTYPE_f64) {
    for (long i = 0; i < n; i++) ((double *)to)[i * step] = sum[i];
    return;
  }
  float *restrict single = out->narrow == DTYPE_f32 && step == 1 ? (float *)to : (float *)out->single;
  if (out->narrow == DTYPE_f32) for (long i = 0; i < n; i++) single[i] = (float)sum[i];
  else for (long i = 0; i < n; i++) single[i] = (float)odd_of(sum[i]);
  if ((char *)single != to) store_single(out, row, single);
}
