//go:build linux

package host

import (
	"cmp"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// node is work of a graph. after is the indices of the nodes that it comes directly
// after. A launch runs all nodes in the order in which they were captured.
type node struct {
	work
	after []int
}

// graphExec is a graph that can be launched.
type graphExec struct {
	nodes []node
	last  *op // of the last launch
}

// FreeGraph frees a graph.
func (v *device) FreeGraph(g driver.Graph) error {
	const verb = "FreeGraph"
	return v.onContextEvenLost(verb, func(c *context) error {
		_, err := find(c, verb, "graph", c.graphs, g)
		delete(c.graphs, g)
		return err
	})
}

// Instantiate makes a graph executable.
func (v *device) Instantiate(g driver.Graph) (x driver.GraphExec, err error) {
	const verb = "Instantiate"
	err = v.onContext(verb, func(c *context) error {
		nodes, err := find(c, verb, "graph", c.graphs, g)
		if err != nil {
			return err
		}
		c.d.lastID++
		x = driver.GraphExec(c.d.lastID)
		c.execs[x] = &graphExec{nodes: nodes}
		return nil
	})
	return x, err
}

// FreeGraphExec frees an executable graph. Its queued launches still run.
func (v *device) FreeGraphExec(x driver.GraphExec) error {
	const verb = "FreeGraphExec"
	return v.onContextEvenLost(verb, func(c *context) error {
		_, err := find(c, verb, "executable graph", c.execs, x)
		delete(c.execs, x)
		return err
	})
}

// UpdateGraphExec replaces what an executable graph does by the same kinds of work, in
// the same order, on the same devices.
func (v *device) UpdateGraphExec(x driver.GraphExec, g driver.Graph) error {
	const verb = "UpdateGraphExec"
	return v.onContext(verb, func(c *context) error {
		exec, err := find(c, verb, "executable graph", c.execs, x)
		if err != nil {
			return err
		}
		nodes, err := find(c, verb, "graph", c.graphs, g)
		if err != nil {
			return err
		}
		if len(nodes) != len(exec.nodes) {
			return refuse(verb, driver.ErrInvalid, "%d pieces of work instead of %d", len(nodes), len(exec.nodes))
		}
		for i, n := range nodes {
			old := exec.nodes[i]
			switch {
			case n.kind != old.kind:
				return refuse(verb, driver.ErrInvalid, "work %d is a %v and was a %v", i, n.kind, old.kind)
			case n.context != old.context:
				return refuse(verb, driver.ErrInvalid, "work %d is of another device than it was", i)
			case !slices.Equal(n.after, old.after):
				return refuse(verb, driver.ErrInvalid, "work %d comes after other work than it did", i)
			}
		}
		exec.nodes = nodes
		return nil
	})
}

// LaunchGraph queues the work of a graph, or adds it to the stream's capture.
func (v *device) LaunchGraph(x driver.GraphExec, s driver.Stream) error {
	const verb = "LaunchGraph"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	d := v.context.d
	d.memMu.RLock()
	defer d.memMu.RUnlock()
	return v.onStream(verb, s, func(to *stream) error {
		exec, err := find(v.context, verb, "executable graph", v.context.execs, x)
		if err != nil {
			return err
		}
		// All is checked before anything is queued.
		ops := make([]*op, len(exec.nodes))
		var missing error
		for i, n := range exec.nodes {
			if n.context.stopped() {
				return refuse(verb, driver.ErrInvalid, "the graph has work of host:%d, which has closed", n.context.state.ordinal)
			}
			ops[i] = &op{work: n.work}
			missing = cmp.Or(missing, ops[i].check(verb))
		}
		if to.capture != nil {
			for _, o := range ops {
				if err := to.captureWork(verb, o.work); err != nil {
					return err
				}
			}
			return nil
		}
		if err := to.checkWork(verb); err != nil {
			return err
		}
		if missing != nil { // the card looks only when the work runs
			d.lose("a graph was launched whose memory is not there, or not accessible, any more: " + missing.Error())
			return nil
		}
		to.orderDefaults()
		if exec.last != nil && !exec.last.ended {
			to.push(waitFor(exec.last.pending()))
		}
		for _, o := range ops {
			to.push(o)
			exec.last = o
		}
		return nil
	})
}
