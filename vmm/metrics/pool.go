package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cuvmm/cuvmm/internal/promstats"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// poolRows are the names of pool.Stats.
var poolRows = []promstats.Row{
	{Field: "Reserved", Name: "cuvmm_pool_reserved_bytes", Help: "Bytes of memory that the pool holds, allocated or not."},
	{Field: "ReservedPeak", Name: "cuvmm_pool_reserved_peak_bytes", Help: "The most bytes held since the peaks were reset."},
	{Field: "Used", Name: "cuvmm_pool_used_bytes", Help: "Bytes of blocks that are allocated, as rounded up."},
	{Field: "UsedPeak", Name: "cuvmm_pool_used_peak_bytes", Help: "The most bytes allocated since the peaks were reset."},

	{Field: "Blocks", Name: "cuvmm_pool_blocks", Help: "Blocks that are allocated, without those of 0 bytes."},
	{Field: "Allocs", Name: "cuvmm_pool_allocs_total", Help: "Blocks that were allocated, without those of 0 bytes."},
	{Field: "Frees", Name: "cuvmm_pool_frees_total", Help: "Blocks that were freed."},
	{Field: "Pending", Name: "cuvmm_pool_pending_bytes", Help: "Bytes freed in streams whose work is not known to have ended."},
	{Field: "InSlabs", Name: "cuvmm_pool_in_slabs_bytes", Help: "Bytes that are free in slabs, for short blocks."},
	{Field: "LargestFree", Name: "cuvmm_pool_largest_free_bytes", Help: "Bytes of the longest run of free memory."},
	{Field: "Created", Name: "cuvmm_pool_created_bytes_total", Help: "Bytes of new memory, also from the cache of the device."},
	{Field: "Remapped", Name: "cuvmm_pool_remapped_bytes_total", Help: "Bytes of idle memory moved to where blocks needed it."},
	{Field: "Released", Name: "cuvmm_pool_released_bytes_total", Help: "Bytes of memory given back."},
	{Field: "Waits", Name: "cuvmm_pool_waits_total", Help: "Waits for another stream that were put into streams to reuse its memory."},
}

// NewPool returns a collector of the pool's Stats. Its metrics have the labels pool, which is the
// name, and device, as NewDevice has it. A registry takes one collector for each name on a device.
// The collector takes the pool's locks for as long as Stats does, and makes no driver call. A nil
// pool has no metrics, and a closed one those of its Stats; Unregister ends them. Safe for
// concurrent use.
func NewPool(name string, p *pool.Pool) prometheus.Collector {
	labels := prometheus.Labels{"device": p.Device().String(), "pool": name}
	return &poolCollector{promstats.NewSet[pool.Stats](poolRows, labels), p}
}

type poolCollector struct {
	promstats.Set[pool.Stats]
	pool *pool.Pool
}

// Collect sends the metrics of one Stats, or none if there is no pool.
func (c *poolCollector) Collect(to chan<- prometheus.Metric) {
	if s, err := c.pool.Stats(); err == nil {
		c.Set.Collect(to, s)
	}
}
