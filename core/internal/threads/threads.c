/* The CPU time of a thread, and numbers of threads and processors (threads.h). */
#define _GNU_SOURCE
#include "threads.h"

#include <stdatomic.h>
#include <time.h>

int64_t sw_thread_time(void) {
  struct timespec t;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)) return 0;
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

#ifdef __linux__
#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <string.h>

/* at::get_num_threads(). torch keeps one global setting and copies it to the OpenMP runtime only in
   threads that use torch. omp_get_max_threads() can therefore differ from it. */
static int (*_Atomic torch_threads)(void);
static _Atomic unsigned long long searched; /* libraries loaded at the time of the last search */

static int count(struct dl_phdr_info *info, size_t size, void *libraries) {
  (void)size;
  *(unsigned long long *)libraries = info->dlpi_adds;
  return 1;
}

static int find_torch(struct dl_phdr_info *info, size_t size, void *path) {
  (void)size;
  const char *name = strrchr(info->dlpi_name, '/');
  if (!name || strcmp(name, "/libtorch_cpu.so")) return 0;
  *(const char **)path = info->dlpi_name;
  return 1;
}

unsigned long long sw_count_libraries(void) {
  unsigned long long libraries = 0;
  dl_iterate_phdr(count, &libraries);
  return libraries;
}

int sw_torch_threads(void) {
  int (*threads)(void) = torch_threads;
  if (threads) return threads();
  unsigned long long libraries = sw_count_libraries();
  if (atomic_exchange(&searched, libraries) == libraries) return 0;
  const char *path = NULL;
  void *library = dl_iterate_phdr(find_torch, &path) ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
  if (library) *(void **)&threads = dlsym(library, "_ZN2at15get_num_threadsEv");
  torch_threads = threads;
  return threads ? threads() : 0;
}

int sw_affinity(void) {
  cpu_set_t set[16]; /* 16384 processors */
  return sched_getaffinity(0, sizeof set, set) ? 0 : CPU_COUNT_S(sizeof set, set);
}
#else
unsigned long long sw_count_libraries(void) { return 0; }
int sw_torch_threads(void) { return 0; }
int sw_affinity(void) { return 0; }
#endif
