#define _GNU_SOURCE
#include "openmp.h"

#ifdef __linux__
#include "threads.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* GOMP_parallel is the function that GCC calls for `#pragma omp parallel`. The runtimes of LLVM and
   Intel export it too. */
typedef struct {
  void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
  int (*max_threads)(void), (*in_parallel)(void), (*thread_num)(void), (*pause)(int);
} runtime;

/* Written by the main thread only, outside of parallel regions; read by the members of its
   teams. */
static runtime found;
static unsigned long long searched; /* libraries loaded at the time of the last search */

static int is_first_thread(void) { return syscall(SYS_gettid) == getpid(); }

/* A dl_iterate_phdr callback: stores the path of the first OpenMP runtime, or of the one in the
   torch package if there are several. */
static int choose(struct dl_phdr_info *info, size_t size, void *path) {
  (void)size;
  const char *name = strrchr(info->dlpi_name, '/');
  int openmp = name && (!strncmp(name, "/libgomp", 8) || !strncmp(name, "/libiomp5", 9)
                        || !strncmp(name, "/libomp", 7));
  if (openmp && (!*(const char **)path || strstr(info->dlpi_name, "/torch/"))) *(const char **)path = info->dlpi_name;
  return 0;
}

static void release_team(void) {
  enum { SOFT = 1 };
  if (is_first_thread()) found.pause(SOFT);
}

static void search(void) {
  const char *path = NULL;
  dl_iterate_phdr(choose, &path);
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
  if (!library) return;
  runtime r;
  *(void **)&r.parallel = dlsym(library, "GOMP_parallel");
  *(void **)&r.max_threads = dlsym(library, "omp_get_max_threads");
  *(void **)&r.in_parallel = dlsym(library, "omp_in_parallel");
  *(void **)&r.thread_num = dlsym(library, "omp_get_thread_num");
  *(void **)&r.pause = dlsym(library, "omp_pause_resource_all"); /* of OpenMP 5.0 */
  if (!r.parallel || !r.max_threads || !r.in_parallel || !r.thread_num || !r.pause) return;
  found = r;
  pthread_atfork(release_team, NULL, NULL);
}

int sw_openmp_has_team(int others) {
  if (!is_first_thread()) return 0;
  unsigned long long count = sw_count_libraries();
  if (!found.parallel && searched != count) {
    searched = count;
    search();
  }
  return found.parallel && !found.in_parallel() && found.max_threads() > others;
}

extern void swOpenMPMember(uintptr_t handle, int number);

typedef struct {
  uintptr_t handle;
  int others;
} region;

static void member(void *data) {
  const region *r = data;
  int number = found.thread_num();
  if (number <= r->others) swOpenMPMember(r->handle, number);
}

void sw_openmp_run(uintptr_t handle, int others) {
  found.parallel(member, &(region){handle, others}, 0, 0);
}
#else
int sw_openmp_has_team(int others) { return 0; }
void sw_openmp_run(uintptr_t handle, int others) {}
#endif
