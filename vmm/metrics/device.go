package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cuvmm/cuvmm/internal/promstats"
	"github.com/cuvmm/cuvmm/vmm"
)

// deviceRows are the names of vmm.Stats, and of the Counts in it.
var deviceRows = []promstats.Row{
	{Field: "Reserved", Name: "cuvmm_device_reserved_bytes", Help: "Bytes of addresses that are reserved."},
	{Field: "Committed", Name: "cuvmm_device_committed_bytes", Help: "Bytes of physical memory that was created here, cached and retiring included. The limit counts them."},
	{Field: "Imported", Name: "cuvmm_device_imported_bytes", Help: "Bytes of memory of another process or device object that is open here. Its owner counts them as committed."},
	{Field: "Used", Name: "cuvmm_device_used_bytes", Help: "Bytes below the length of ranges that are awake and have no Supplier."},
	{Field: "Cached", Name: "cuvmm_device_cached_bytes", Help: "Bytes of unused memory that is kept for growth."},
	{Field: "Retiring", Name: "cuvmm_device_retiring_bytes", Help: "Bytes that are given up, and that work may still use."},
	{Field: "Quarantined", Name: "cuvmm_device_quarantined_bytes", Help: "Bytes that could not be unmapped or given back."},
	{Field: "Asleep", Name: "cuvmm_device_asleep_bytes", Help: "Bytes below the length of ranges that sleep."},
	{Field: "HostCopies", Name: "cuvmm_device_host_copies_bytes", Help: "Bytes of host memory for the contents of ranges that sleep or have slept."},
	{Field: "Pinned", Name: "cuvmm_device_pinned_bytes", Help: "Bytes of pinned host memory for staging, mirrors and copies, of all that is open on the device."},

	{Field: "PeakReserved", Name: "cuvmm_device_reserved_peak_bytes", Help: "The most bytes of addresses since the peaks were reset."},
	{Field: "PeakCommitted", Name: "cuvmm_device_committed_peak_bytes", Help: "The most bytes of physical memory since the peaks were reset."},
	{Field: "PeakUsed", Name: "cuvmm_device_used_peak_bytes", Help: "The most bytes used since the peaks were reset."},
	{Field: "PeakCached", Name: "cuvmm_device_cached_peak_bytes", Help: "The most bytes cached since the peaks were reset."},
	{Field: "PeakRetiring", Name: "cuvmm_device_retiring_peak_bytes", Help: "The most bytes retiring since the peaks were reset."},

	{Field: "Creates", Name: "cuvmm_device_creates_total", Help: "Pieces of memory taken from the driver."},
	{Field: "Releases", Name: "cuvmm_device_releases_total", Help: "Pieces of memory given back to the driver."},
	{Field: "Maps", Name: "cuvmm_device_maps_total", Help: "Pieces of memory mapped."},
	{Field: "Unmaps", Name: "cuvmm_device_unmaps_total", Help: "Pieces of memory unmapped."},
	{Field: "Hits", Name: "cuvmm_device_hits_total", Help: "Cached pieces of memory that growth took."},
	{Field: "Growths", Name: "cuvmm_device_growths_total", Help: "Growths that a caller waited for."},
	{Field: "GrowAheads", Name: "cuvmm_device_grow_aheads_total", Help: "Growths ahead of need."},
	{Field: "GrowAheadFailures", Name: "cuvmm_device_grow_ahead_failures_total", Help: "Growths ahead of need that got less than they wanted, or nothing."},
	{Field: "Reclaimed", Name: "cuvmm_device_reclaimed_bytes_total", Help: "Bytes taken back while retiring."},

	{Field: "WorkTime", Name: "cuvmm_device_work_seconds_total", Help: "Time that the goroutine of the device has been at work."},

	{Field: "Limit", Name: "cuvmm_device_limit_bytes", Help: "Limit of the memory that the process creates on the device; 0 is none."},
	{Field: "Lease", Name: "cuvmm_device_lease_bytes", Help: "What a budget has lent the process; 0 is none."},
	{Field: "ReleaseThreshold", Name: "cuvmm_device_release_threshold_bytes", Help: "How many bytes of unused memory the device keeps."},
	{Field: "AddressLimit", Name: "cuvmm_device_address_limit_bytes", Help: "Limit of the addresses that the process reserves, on all devices."},
}

// NewDevice returns a collector of the device's Stats. Its metrics have the label device, which is
// the device's name as in "cuda:0". A registry takes one collector for each name, so that the second
// one of two Devices on the same GPU needs prometheus.WrapRegistererWith and a label of its own. A
// closed device has metrics as its Stats has numbers; Unregister ends them. It makes no driver call.
// Safe for concurrent use.
func NewDevice(dev *vmm.Device) prometheus.Collector {
	return promstats.Collector(deviceRows, prometheus.Labels{"device": dev.String()}, dev.Stats)
}
