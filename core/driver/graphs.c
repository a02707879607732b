/* Launches as executable graphs (graphs.h). */
#include "graphs.h"
#include "functions.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
  GRAPHS = 16,
  FORGOTTEN = 1000, /* launches after which a graph may go to another stream, once its own stream is done */
  RELAXED = 2       /* CU_STREAM_CAPTURE_MODE_RELAXED */
};

typedef struct {
  uintptr_t node, ready, stream;
  uint64_t used; /* when it was started last; 0: never */
  node_params params;
  size_t words;
  uint64_t word[SW_MAX_WORDS];
  void *arguments[1]; /* of params: word */
} graph;

struct sw_graphs {
  atomic_flag busy;
  uint64_t launches;
  int count; /* as many as the driver makes */
  graph graph[GRAPHS];
};

static int make(graph *graph, uintptr_t context, uintptr_t function) {
  uintptr_t made;
  graph->arguments[0] = graph->word;
  graph->params = (node_params){function, {1, 1, 1}, {32, 1, 1}, 0, graph->arguments, NULL, 0, context};
  int status = sw_cuda.cuGraphCreate(&made, 0);
  if (!status) status = sw_cuda.cuGraphAddKernelNode_v2(&graph->node, made, NULL, 0, &graph->params);
  return status ? status : sw_cuda.cuGraphInstantiateWithFlags(&graph->ready, made, 0);
}

sw_graphs *sw_graphs_make(uintptr_t context, uintptr_t function) {
  sw_graphs *graphs = calloc(1, sizeof *graphs);
  if (!graphs) return NULL;
  int mode = RELAXED; /* or a capture of another thread would end */
  sw_cuda.cuThreadExchangeStreamCaptureMode(&mode);
  while (graphs->count < GRAPHS && !make(&graphs->graph[graphs->count], context, function)) graphs->count++;
  sw_cuda.cuThreadExchangeStreamCaptureMode(&mode);
  return graphs;
}

/* The graph of a kernel on a stream, or the one that is used the least of those that may become
   it. */
static graph *graph_of(sw_graphs *graphs, const sw_launch *l) {
  graph *least = NULL;
  for (graph *graph = graphs->graph; graph < graphs->graph + graphs->count; graph++) {
    if (graph->used && graph->stream == l->stream && graph->params.function == l->function) return graph;
    int may = !graph->used || graph->stream == l->stream || graphs->launches - graph->used >= FORGOTTEN;
    if (may && (!least || graph->used < least->used)) least = graph;
  }
  return least;
}

/* Makes what the graph starts this launch. */
static int set(graph *graph, const sw_launch *l, const uint64_t *words) {
  size_t size = l->words * sizeof *words;
  node_params *p = &graph->params;
  if (graph->used && p->function == l->function && p->grid[0] == l->grid && p->block[0] == l->block
      && p->shared == l->shared &&
      graph->words == l->words && !memcmp(graph->word, words, size))
    return 0;
  memcpy(graph->word, words, size);
  graph->words = l->words;
  p->function = l->function, p->grid[0] = l->grid, p->block[0] = l->block, p->shared = l->shared;
  return sw_cuda.cuGraphExecKernelNodeSetParams_v2(graph->ready, graph->node, p);
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
    started = !status && !sw_cuda.cuGraphLaunch(graph->ready, l->stream);
  }
  atomic_flag_clear(&l->graphs->busy);
  return started;
}
