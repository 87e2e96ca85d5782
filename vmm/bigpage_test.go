//go:build bigpages

package vmm_test

// page is the granularity of a GPU.
const page = 2 << 20
