// Captures, and the graphs that they become.
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
	struct CUgraph_st *next;
	struct device *device;
	unsigned int epoch;
	bool gone; // its context was reset
	struct node *nodes;
};

struct CUgraphExec_st {
	struct CUgraphExec_st *next;
	struct device *device;
	unsigned int epoch;
	bool gone;
	struct node *nodes;
};

CUresult add_node(struct node **list, CUfunction f, const void *args, size_t n) {
	struct node *node = malloc(sizeof *node + n);
	if (node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*node = (struct node){.f = f, .n = n};
	if (n > 0)
		memcpy(node->args, args, n);
	while (*list != NULL)
		list = &(*list)->next;
	*list = node;
	return CUDA_SUCCESS;
}

void free_nodes(struct node **list) {
	for (struct node *node = *list; node != NULL;) {
		struct node *next = node->next;
		free(node);
		node = next;
	}
	*list = NULL;
}

// add_nodes appends copies.
static CUresult add_nodes(struct node **list, const struct node *from) {
	for (; from != NULL; from = from->next)
		TRY(add_node(list, from->f, from->args, from->n));
	return CUDA_SUCCESS;
}

CUresult cu_stream_begin_capture(CUstream stream, CUstreamCaptureMode wanted) {
	MEETS(stream_begin_capture, CHANGES, stream);
	ENTER(stream_begin_capture, "stream=%p mode=%d", (void *)stream, wanted);
	struct device *dev;
	struct stream *s;
	TRY(context(&dev));
	TRY(stream_of(dev, stream, &s));
	if (s == NULL)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if ((int)wanted < 0 || wanted > CU_STREAM_CAPTURE_MODE_RELAXED || s->capture != CU_STREAM_CAPTURE_STATUS_NONE)
		return CUDA_ERROR_INVALID_VALUE;
	s->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	s->capture_id = ++fake.ids;
	s->mode = wanted;
	s->thread = pthread_self();
	return CUDA_SUCCESS;
}

CUresult cu_stream_capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
	ENTER(stream_capture_info, "stream=%p", (void *)stream);
	struct device *dev;
	struct stream *s;
	TRY(context(&dev));
	TRY(stream_of(dev, stream, &s));
	*status = s == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : s->capture;
	*id = ~0ull; // of no meaning unless the capture is active
	if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
		*id = s->capture_id;
	return CUDA_SUCCESS;
}

CUresult cu_stream_end_capture(CUstream stream, CUgraph *graph) {
	MEETS(stream_end_capture, CHANGES, stream);
	ENTER(stream_end_capture, "stream=%p", (void *)stream);
	struct device *dev;
	struct stream *s;
	TRY(context(&dev));
	TRY(stream_of(dev, stream, &s));
	*graph = NULL;
	if (s == NULL || s->capture == CU_STREAM_CAPTURE_STATUS_NONE)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(s->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	bool whole = s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
	s->capture = CU_STREAM_CAPTURE_STATUS_NONE;
	struct CUgraph_st *g = whole ? malloc(sizeof *g) : NULL;
	if (g == NULL) {
		free_nodes(&s->captured);
		return whole ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	*g = (struct CUgraph_st){.next = fake.graphs, .device = dev, .epoch = dev->epoch, .nodes = s->captured};
	s->captured = NULL;
	fake.graphs = g;
	*graph = g;
	return CUDA_SUCCESS;
}

// known_graph finds where a graph is listed, and known_exec an executable one.
static CUresult known_graph(CUgraph graph, struct CUgraph_st ***at) {
	*at = &fake.graphs;
	while (**at != NULL && **at != graph)
		*at = &(**at)->next;
	if (**at == NULL || graph->gone) {
		violate("graph %p does not exist", (void *)graph);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult known_exec(CUgraphExec exec, struct CUgraphExec_st ***at) {
	*at = &fake.execs;
	while (**at != NULL && **at != exec)
		*at = &(**at)->next;
	if (**at == NULL || exec->gone) {
		violate("executable graph %p does not exist", (void *)exec);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cu_graph_destroy(CUgraph graph) {
	ENTER(graph_destroy, "graph=%p", (void *)graph);
	struct CUgraph_st **at;
	TRY(known_graph(graph, &at));
	*at = graph->next;
	free_nodes(&graph->nodes);
	free(graph);
	return CUDA_SUCCESS;
}

CUresult cu_graph_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
	ENTER(graph_instantiate, "graph=%p flags=%llu", (void *)graph, flags);
	struct device *dev;
	struct CUgraph_st **at;
	TRY(context(&dev));
	TRY(known_graph(graph, &at));
	TRY(unsafe_in_capture());
	if (flags != 0) {
		violate("flags are %llu", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct CUgraphExec_st *x = malloc(sizeof *x);
	if (x == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*x = (struct CUgraphExec_st){.next = fake.execs, .device = dev, .epoch = dev->epoch};
	CUresult r = add_nodes(&x->nodes, graph->nodes);
	if (r != CUDA_SUCCESS) {
		free_nodes(&x->nodes);
		free(x);
		return r;
	}
	fake.execs = x;
	*exec = x;
	return CUDA_SUCCESS;
}

CUresult cu_graph_exec_destroy(CUgraphExec exec) {
	ENTER(graph_exec_destroy, "exec=%p", (void *)exec);
	struct device *dev;
	struct CUgraphExec_st **at;
	CUresult lost = context(&dev);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	TRY(known_exec(exec, &at));
	TRY(unsafe_in_capture());
	*at = exec->next;
	free_nodes(&exec->nodes);
	free(exec);
	return lost;
}

static size_t count(const struct node *node) {
	size_t n = 0;
	for (; node != NULL; node = node->next)
		n++;
	return n;
}

CUresult cu_graph_update(CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *result) {
	ENTER(graph_update, "exec=%p graph=%p", (void *)exec, (void *)graph);
	struct device *dev;
	struct CUgraphExec_st **at_exec;
	struct CUgraph_st **at_graph;
	TRY(context(&dev));
	TRY(known_exec(exec, &at_exec));
	TRY(known_graph(graph, &at_graph));
	TRY(unsafe_in_capture());
	*node = NULL;
	*result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
	if (count(exec->nodes) != count(graph->nodes)) {
		*result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	struct node *nodes = NULL;
	CUresult r = add_nodes(&nodes, graph->nodes);
	if (r != CUDA_SUCCESS) {
		free_nodes(&nodes);
		return r;
	}
	free_nodes(&exec->nodes);
	exec->nodes = nodes;
	return CUDA_SUCCESS;
}

CUresult cu_graph_launch(CUgraphExec exec, CUstream stream) {
	ENTER(graph_launch, "exec=%p stream=%p", (void *)exec, (void *)stream);
	struct device *dev;
	struct CUgraphExec_st **at;
	struct stream *s;
	bool run;
	TRY(context(&dev));
	TRY(known_exec(exec, &at));
	TRY(queue(dev, stream, &run));
	if (exec->device != dev || exec->epoch != dev->epoch) {
		violate("executable graph %p is of another context", (void *)exec);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!run) {
		TRY(stream_of(dev, stream, &s));
		return add_nodes(&s->captured, exec->nodes);
	}
	for (struct node *node = exec->nodes; node != NULL; node = node->next)
		TRY(run_node(dev, node));
	return CUDA_SUCCESS;
}

void count_graphs(struct fake_count *out) {
	for (struct CUgraph_st *g = fake.graphs; g != NULL; g = g->next)
		out->graphs += !g->gone;
	for (struct CUgraphExec_st *x = fake.execs; x != NULL; x = x->next)
		out->execs += !x->gone;
}

void graphs_gone(struct device *dev) {
	for (struct CUgraph_st *g = fake.graphs; g != NULL; g = g->next)
		g->gone = g->gone || (g->device == dev && g->epoch == dev->epoch);
	for (struct CUgraphExec_st *x = fake.execs; x != NULL; x = x->next)
		x->gone = x->gone || (x->device == dev && x->epoch == dev->epoch);
}

void reset_graphs(void) {
	for (struct CUgraph_st *g = fake.graphs; g != NULL;) {
		struct CUgraph_st *next = g->next;
		free_nodes(&g->nodes);
		free(g);
		g = next;
	}
	for (struct CUgraphExec_st *x = fake.execs; x != NULL;) {
		struct CUgraphExec_st *next = x->next;
		free_nodes(&x->nodes);
		free(x);
		x = next;
	}
	fake.graphs = NULL;
	fake.execs = NULL;
}
