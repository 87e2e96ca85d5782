//go:build !bigpages

package vmm_test

// page is the granularity of these tests. It is small, so that chunks are cheap. With -tags
// bigpages it is that of a GPU.
const page = 4096
