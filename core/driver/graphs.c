/* Launches as executable graphs (graphs.h). */
#include "graphs.h"
#include "functions.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
  GRAPHS = 16,
  IDLE_LAUNCHES = 1000, /* a graph that this many launches did not use may move to another stream */
  RELAXED = 2           /* CU_STREAM_CAPTURE_MODE_RELAXED */
};

typedef struct {
  uintptr_t node, executable, stream;
  uint64_t used; /* number of its last launch; 0: never launched */
  node_params params;
  size_t words;
  uint64_t argument[SW_MAX_WORDS];
  void *arguments[1]; /* of params: the address of argument */
} graph;

struct sw_graphs {
  atomic_flag busy;
  uint64_t launches;
  int count; /* graphs that the driver could create */
  graph graph[GRAPHS];
};

static int make(graph *graph, uintptr_t context, uintptr_t function) {
  uintptr_t made;
  graph->arguments[0] = graph->argument;
  graph->params = (node_params){function, {1, 1, 1}, {32, 1, 1}, 0, graph->arguments, NULL, 0, context};
  int status = sw_cuda.cuGraphCreate(&made, 0);
  if (!status) status = sw_cuda.cuGraphAddKernelNode_v2(&graph->node, made, NULL, 0, &graph->params);
  return status ? status : sw_cuda.cuGraphInstantiateWithFlags(&graph->executable, made, 0);
}

sw_graphs *sw_graphs_make(uintptr_t context, uintptr_t function) {
  sw_graphs *graphs = calloc(1, sizeof *graphs);
  if (!graphs) return NULL;
  int mode = RELAXED; /* in another mode, these calls would end a capture of another thread */
  sw_cuda.cuThreadExchangeStreamCaptureMode(&mode);
  while (graphs->count < GRAPHS && !make(&graphs->graph[graphs->count], context, function)) graphs->count++;
  sw_cuda.cuThreadExchangeStreamCaptureMode(&mode);
  return graphs;
}

/* Returns the graph of a kernel on a stream, or else the least recently used graph that may be
   reassigned; NULL if there is none. */
static graph *graph_of(sw_graphs *graphs, const sw_launch *l) {
  graph *oldest = NULL;
  for (graph *graph = graphs->graph; graph < graphs->graph + graphs->count; graph++) {
    if (graph->used && graph->stream == l->stream && graph->params.function == l->function) return graph;
    int is_free = !graph->used || graph->stream == l->stream || graphs->launches - graph->used >= IDLE_LAUNCHES;
    if (is_free && (!oldest || graph->used < oldest->used)) oldest = graph;
  }
  return oldest;
}

/* Updates the kernel node of a graph to this launch, if it differs. */
static int set(graph *graph, const sw_launch *l, const uint64_t *words) {
  size_t size = l->words * sizeof *words;
  node_params *p = &graph->params;
  if (graph->used && p->function == l->function && p->grid[0] == l->grid && p->block[0] == l->block
      && p->shared == l->shared &&
      graph->words == l->words && !memcmp(graph->argument, words, size))
    return 0;
  memcpy(graph->argument, words, size);
  graph->words = l->words;
  p->function = l->function, p->grid[0] = l->grid, p->block[0] = l->block, p->shared = l->shared;
  return sw_cuda.cuGraphExecKernelNodeSetParams_v2(graph->executable, graph->node, p);
}

int sw_graphs_launch(const sw_launch *l, const uint64_t *words) {
  int captured, started = 0;
  if (!l->graphs || sw_cuda.cuStreamIsCapturing(l->stream, &captured) || captured
      || atomic_flag_test_and_set(&l->graphs->busy)) return 0;
  graph *graph = graph_of(l->graphs, l);
  if (graph) {
    int status = set(graph, l, words);
    graph->stream = l->stream;
    graph->used = status ? 0 : ++l->graphs->launches;
    started = !status && !sw_cuda.cuGraphLaunch(graph->executable, l->stream);
  }
  atomic_flag_clear(&l->graphs->busy);
  return started;
}
